// How fast a device's matmuls can be: the limit that a run's speed is compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include "exec/device.h"

namespace tutti {

/// GFLOP/s of a matmul of 8192 x 8192 matrices of `type`, or of smaller ones where the device is
/// full: the median of several. `place` is the device for ATen; `stream` becomes the thread's
/// current one. Waits for it.
double matmul_gflops(Device& device, Stream stream, at::Device place, at::ScalarType type);

}  // namespace tutti
