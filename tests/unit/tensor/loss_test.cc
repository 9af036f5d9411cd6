// Softmax cross-entropy against ATen in float64. Tolerance: the loss of a row carries the rounding
// of a float sum of exponentials, and a probability that of the kept float log-sum-exp: 1e-6.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

class LossKernel : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, LossKernel, testing::ValuesIn(kCodePaths), isa_name);

struct Result {
  double value[2];
  Floats lse, gradient;
};
Result run(const Kernels& table, const Floats& logits, const std::vector<int64_t>& targets,
           int64_t cols) {
  const auto rows = static_cast<int64_t>(targets.size());
  Result r{{}, Floats(rows), Floats(logits.size(), 7.0f)};
  table.cross_entropy(logits.data(), targets.data(), r.lse.data(), r.value, rows, cols);
  table.cross_entropy_backward(logits.data(), targets.data(), r.lse.data(), nullptr,
                               r.gradient.data(), rows, cols);
  return r;
}

TEST_P(LossKernel, SumCountAndGradientAgreeWithAten) {
  for (const int64_t cols : {1, 2, 15, 16, 31, 65, 256, 1000}) {
    for (const float scale : {0.1f, 1.0f, 20.0f}) {
      const int64_t rows = 33;
      const Floats logits = normals(rows * cols, 1, scale);
      std::vector<int64_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(r % 5 == 4 ? -1 : r * 7 % cols);
      const Result got = run(*table, logits, targets, cols);
      const at::Tensor x = leaf(logits, {rows, cols});
      const at::Tensor loss =
          at::nll_loss(at::log_softmax(x, -1), at::tensor(targets), {}, at::Reduction::Sum, -1);
      EXPECT_NEAR(got.value[0], loss.item<double>(), 1e-6 * (1 + std::abs(loss.item<double>())));
      EXPECT_EQ(got.value[1], 27);
      // A log-sum-exp of about 60 (scale 20) is kept to 2e-6.
      EXPECT_LT(distance(got.gradient, torch::autograd::grad({loss}, {x})[0]) * (cols == 1 ? 0 : 1),
                1e-6 + 2e-7 * scale);
    }
  }
}

TEST_P(LossKernel, RowsWithoutATargetHaveNoGradient) {
  const Result got = run(*table, normals(2 * 40, 1), {-1, 3}, 40);
  for (int64_t c = 0; c < 40; ++c) EXPECT_EQ(got.gradient[c], 0);
  EXPECT_EQ(got.value[1], 1);
}

TEST_P(LossKernel, NotANumberAnywhereInARowMakesTheLossNotANumber) {
  for (const size_t at : {0, 1, 16, 38, 39}) {
    Floats logits = normals(40, 1);
    logits[at] = NAN;
    EXPECT_TRUE(std::isnan(run(*table, logits, {5}, 40).value[0])) << at;
  }
}

TEST_P(LossKernel, AnElementsBitsDoNotDependOnItsPlace) {
  const Floats logits = normals(50, 1);
  const Floats lse{2.5f};
  const int64_t target = 0;
  Floats all(50);
  table->cross_entropy_backward(logits.data(), &target, lse.data(), nullptr, all.data(), 1, 50);
  for (int64_t c = 1; c < 50; ++c) {
    float pair[2] = {0, logits[c]}, one[2];
    table->cross_entropy_backward(pair, &target, lse.data(), nullptr, one, 1, 2);
    EXPECT_TRUE(same_bits(one + 1, &all[c], 1));
  }
}

}  // namespace
}  // namespace tutti::test
