// Standard normals keyed by (seed, sample), for a variational autoencoder's codes.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/core/segment.h"

namespace tutti {

/// Normals [rows, width] in float32 on `device`: element i of row r is draw i of sample
/// first_sample + r of philox_normal, with Purpose::kLatent. So a sample's noise does not depend on
/// its micro-batch. On a device, samples are counted as Pass::keys says.
at::Tensor keyed_normals(const Pass& pass, int64_t rows, int64_t width, at::Device device);

/// The same in the host's memory.
void draw_keyed_normals(const Pass& pass, int64_t rows, int64_t width, float* to);

/// The same by operations on tensors, for int64 `samples` [rows] on any device. The words drawn are
/// philox's; logarithm, cosine and sine are the device's, so last bits may differ.
at::Tensor philox_normals(uint64_t seed, const at::Tensor& samples, int64_t width);

}  // namespace tutti
