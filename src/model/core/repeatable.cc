// The two forms of each operation: ATen's own on the CPU, and a composition of simpler operations
// on a GPU, whose backward adds in a fixed order.
#include "model/core/repeatable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

namespace tutti {

at::Tensor max_pool(const at::Tensor& x) {
  return x.is_cpu() ? at::max_pool2d(x, {2, 2}) : repeatable::max_pool(x);
}

at::Tensor average_pool(const at::Tensor& x) {
  return x.is_cpu() ? at::avg_pool2d(x, {2, 2}) : repeatable::average_pool(x);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (!q.is_cpu()) return repeatable::causal_attention(q, k, v);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
}

namespace repeatable {

// The maximum of the four pixels of a window, taken one after the other. A later value wins only if
// it is larger (or NaN), and backward follows the same choice: so the gradient of equal values goes
// to the first.
at::Tensor max_pool(const at::Tensor& x) {
  const int64_t height = x.size(2) / 2 * 2, width = x.size(3) / 2 * 2;
  const auto part = [&](int64_t row, int64_t col) {
    return x.slice(2, row, height, 2).slice(3, col, width, 2);
  };
  at::Tensor best = part(0, 0);
  for (const auto& [row, col] : {std::pair{0, 1}, std::pair{1, 0}, std::pair{1, 1}}) {
    const at::Tensor next = part(row, col);
    best =
        at::where((next.detach() > best.detach()).logical_or(at::isnan(next.detach())), next, best);
  }
  return best;
}

at::Tensor average_pool(const at::Tensor& x) {
  const int64_t height = x.size(2) / 2, width = x.size(3) / 2;
  return x.narrow(2, 0, 2 * height)
      .narrow(3, 0, 2 * width)
      .reshape({x.size(0), x.size(1), height, 2, width, 2})
      .mean({3, 5});
}

// The softmax is in float32 whatever type the matmuls have, as under autocast.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t length = q.size(-2);
  const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).to(at::kFloat) /
                            std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor shares =
      at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
  return at::matmul(shares.to(v.scalar_type()), v);
}

}  // namespace repeatable

}  // namespace tutti
