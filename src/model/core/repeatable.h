// Pooling and attention that repeat bit for bit on a GPU. ATen's own kernels there do not, because
// their backward adds with atomics; these are made of operations that do. On the CPU they are
// ATen's own.
#pragma once

#include <ATen/core/Tensor.h>

namespace tutti {

/// The largest value, or the mean, of each 2 x 2 window of x [batch, channels, height, width]; an
/// odd last row or column is left out. If values are equal, the first gets max_pool's gradient.
at::Tensor max_pool(const at::Tensor& x);
at::Tensor average_pool(const at::Tensor& x);
/// Causal attention of q, k and v [batch, heads, length, dim].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// The forms for a GPU, which run on any device.
namespace repeatable {
at::Tensor max_pool(const at::Tensor& x);
at::Tensor average_pool(const at::Tensor& x);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
}  // namespace repeatable

}  // namespace tutti
