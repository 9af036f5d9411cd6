// Operations whose ATen kernels on a GPU do not repeat bit for bit (their gradients add up by
// atomics), made of ones that do. On the CPU they are ATen's own.
#pragma once

#include <ATen/core/Tensor.h>

namespace tutti {

/// The largest, or the mean, of each 2 x 2 window of x [batch, channels, height, width]; an odd
/// last row or column is left out. The gradient of equal values goes to the first.
at::Tensor max_pool(const at::Tensor& x);
at::Tensor average_pool(const at::Tensor& x);
/// Causal attention of q, k and v [batch, heads, length, dim].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// What these are on a GPU, for any device.
namespace repeatable {
at::Tensor max_pool(const at::Tensor& x);
at::Tensor average_pool(const at::Tensor& x);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
}  // namespace repeatable

}  // namespace tutti
