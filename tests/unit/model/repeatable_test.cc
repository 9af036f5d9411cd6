// What replaces ATen's operations on a GPU, on the CPU against ATen's own.
#include "model/core/repeatable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>

namespace tutti {
namespace {

at::Tensor wave(at::IntArrayRef dims, double phase) {
  int64_t size = 1;
  for (const int64_t d : dims) size *= d;
  return (at::arange(size, at::kFloat) * 0.7 + phase).sin().reshape(dims);
}

struct Result {
  at::Tensor value, grad;
};
Result run(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& given) {
  const at::Tensor x = given.detach().clone().requires_grad_();
  const at::Tensor y = f(x);
  return {y.detach(), torch::autograd::grad({y}, {x}, {wave(y.sizes(), 0.3)})[0]};
}

TEST(Repeatable, MaxPoolIsTorchsWithTiesAndOddSizesBitForBit) {
  for (const auto& [height, width] : {std::pair{6, 8}, std::pair{7, 5}, std::pair{2, 3}}) {
    const at::Tensor smooth = wave({2, 3, height, width}, 0);
    const at::Tensor tied = (smooth * 2).round();  // many equal values in a window
    for (const at::Tensor& x : {smooth, tied}) {
      const Result ours = run(repeatable::max_pool, x);
      const Result torchs = run([](const at::Tensor& t) { return at::max_pool2d(t, {2, 2}); }, x);
      EXPECT_TRUE(at::equal(ours.value, torchs.value)) << height << " x " << width;
      EXPECT_TRUE(at::equal(ours.grad, torchs.grad)) << height << " x " << width;
    }
  }
}

TEST(Repeatable, MaxPoolHandsNanOn) {
  for (int64_t place = 0; place < 4; ++place) {
    at::Tensor x = wave({1, 1, 2, 2}, 0);
    x.view({4})[place] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(repeatable::max_pool(x).isnan().item<bool>()) << place;
  }
}

TEST(Repeatable, AveragePoolIsTorchs) {
  for (const auto& [height, width] : {std::pair{6, 8}, std::pair{7, 5}}) {
    const at::Tensor x = wave({2, 3, height, width}, 0);
    const Result ours = run(repeatable::average_pool, x);
    const Result torchs = run([](const at::Tensor& t) { return at::avg_pool2d(t, {2, 2}); }, x);
    // Four numbers of at most 1, added in another order.
    EXPECT_LE((ours.value - torchs.value).abs().max().item<double>(), 2e-7);
    EXPECT_TRUE(at::equal(ours.grad, torchs.grad));
  }
}

TEST(Repeatable, AttentionIsTorchs) {
  const at::Tensor k = wave({2, 3, 9, 8}, 1), v = wave({2, 3, 9, 8}, 2);
  const Result ours =
      run([&](const at::Tensor& q) { return repeatable::causal_attention(q, k, v); },
          wave({2, 3, 9, 8}, 0));
  const Result torchs = run(
      [&](const at::Tensor& q) { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); },
      wave({2, 3, 9, 8}, 0));
  // Sums of 9 numbers of at most 1 in another order.
  EXPECT_LE((ours.value - torchs.value).abs().max().item<double>(), 1e-5);
  EXPECT_LE((ours.grad - torchs.grad).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace tutti
