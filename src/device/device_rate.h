// How fast a device's matmuls can be: what a run's share of the limit is measured against.
#pragma once

#include <ATen/core/Tensor.h>

#include "exec/device.h"

namespace tutti {

/// GFLOP/s of a matmul of 8192 x 8192 matrices of `type`, or of smaller ones where the device is
/// full: the median of several. `place` is the device for ATen; `stream` becomes its current one.
/// Waits for it.
double matmul_gflops(Device& device, Stream stream, at::Device place, at::ScalarType type);

}  // namespace tutti
