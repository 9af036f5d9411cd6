// The GPU's softmax cross-entropy against ATen in float64 on the CPU. Tolerances: the loss of a row
// carries the rounding of a float sum of exponentials and of the kept float log-sum-exp, 1e-6 of
// either; a gradient of 16 bits is rounded once more.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "gpu/compare.h"

namespace tutti {
namespace {

template <class A>
struct Lost {
  std::vector<double> result;
  std::vector<float> lse;
  std::vector<A> gradient;
};

template <class A>
class GpuLoss : public GpuTest {
 protected:
  const KernelsFor<A>& table = table_of<A>(library);

  /// `shift` elements off the border of the arrays' memory.
  Lost<A> run(const std::vector<A>& logits, const std::vector<int64_t>& ids, int64_t cols,
              std::optional<double> scale = {}, int64_t shift = 0, bool in_place = false) {
    const auto rows = static_cast<int64_t>(ids.size());
    std::vector<A> shifted(static_cast<size_t>(shift), static_cast<A>(NAN));
    shifted.insert(shifted.end(), logits.begin(), logits.end());
    const GpuArray<A> x(*device, stream, shifted),
        own(*device, stream, unwritten<A>(shift + rows * cols));
    const GpuArray<int64_t> targets(*device, stream, ids);
    const GpuArray<float> lse(*device, stream, unwritten<float>(rows));
    const GpuArray<double> result(*device, stream, std::vector<double>(2, NAN)),
        factor(*device, stream, std::vector<double>(1, scale.value_or(NAN)));
    A* const dx = (in_place ? x : own).data() + shift;
    table.cross_entropy(x.data() + shift, targets.data(), lse.data(), result.data(), rows, cols);
    table.cross_entropy_backward(x.data() + shift, targets.data(), lse.data(),
                                 scale ? factor.data() : nullptr, dx, rows, cols);
    std::vector<A> gradient = (in_place ? x : own).get();
    gradient.erase(gradient.begin(), gradient.begin() + shift);
    return {result.get(), lse.get(), std::move(gradient)};
  }
};
TYPED_TEST_SUITE(GpuLoss, Activations);

/// Every fifth row has none.
std::vector<int64_t> some_targets(int64_t rows, int64_t cols) {
  std::vector<int64_t> targets;
  for (int64_t r = 0; r < rows; ++r) targets.push_back(r % 5 == 4 ? -1 : r * 7919 % cols);
  return targets;
}

TYPED_TEST(GpuLoss, SumCountAndGradientAgreeWithAten) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const int64_t cols : {1, 2, 15, 256, 257, 1000, 2049, 50304}) {
    for (const float spread : {1.0f, 10.0f}) {
      const int64_t rows = 65;
      SCOPED_TRACE(fmt::format("cols {} spread {} seed {}", cols, spread, kSeed));
      const std::vector<A> logits = normals<A>(random, rows * cols, spread);
      const std::vector<int64_t> targets = some_targets(rows, cols);
      const Lost<A> got = this->run(logits, targets, cols, 0.25);
      const at::Tensor x = exact(logits, {rows, cols}).requires_grad_(true);
      const at::Tensor loss =
          at::nll_loss(at::log_softmax(x, -1), at::tensor(targets), {}, at::Reduction::Sum, -1);
      const at::Tensor dx = torch::autograd::grad({loss * 0.25}, {x})[0];
      EXPECT_NEAR(got.result[0], loss.template item<double>(), 2e-6 * rows * (1 + spread * 4));
      EXPECT_EQ(got.result[1], 52);
      EXPECT_LT(distance(got.lse, x.logsumexp(-1)), 1e-6);
      // One column has no gradient but what rounding leaves. float16 has nothing between 0 and
      // 2^-24.
      const double floor = std::is_same_v<A, c10::Half> ? 0x1p-23 : 0;
      if (cols > 1)
        EXPECT_LT(distance(got.gradient, dx), 2e-6 * (1 + spread) + kRounding<A> + floor);
    }
  }
}

TYPED_TEST(GpuLoss, RowsWithoutATargetHaveNoGradient) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  std::vector<A> logits = normals<A>(random, 4 * 40);
  logits[3] = static_cast<A>(NAN);
  // 40 and above are no columns: as good as none, and never read.
  const Lost<A> got = this->run(logits, {-1, 3, 40, int64_t{1} << 60}, 40);
  for (size_t i = 0; i < got.gradient.size(); ++i) {
    const bool zero = static_cast<float>(got.gradient[i]) == 0;
    EXPECT_EQ(zero, i / 40 != 1) << i;
  }
  EXPECT_EQ(got.result[1], 1);
  EXPECT_TRUE(std::isfinite(got.result[0])) << "a row without a target counted";
}

TYPED_TEST(GpuLoss, NotANumberAnywhereInARowMakesTheLossNotANumber) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const size_t at : {0, 1, 16, 2038, 2039}) {
    std::vector<A> logits = normals<A>(random, 2040);
    logits[at] = static_cast<A>(NAN);
    EXPECT_TRUE(std::isnan(this->run(logits, {5}, 2040).result[0])) << at;
    logits[at] = static_cast<A>(INFINITY);
    EXPECT_FALSE(std::isfinite(this->run(logits, {5}, 2040).result[0])) << at;
  }
}

TYPED_TEST(GpuLoss, AnInfinitelySmallLogitIsAProbabilityOfZero) {
  using A = TypeParam;
  std::vector<A> logits(300, static_cast<A>(-INFINITY));
  logits[7] = logits[9] = static_cast<A>(2.0f);
  const Lost<A> got = this->run(logits, {9}, 300);
  EXPECT_NEAR(got.result[0], std::log(2.0), 1e-6);
  EXPECT_EQ(static_cast<float>(got.gradient[8]), 0);
  EXPECT_NEAR(static_cast<float>(got.gradient[7]), 0.5, 1e-6);
  EXPECT_NEAR(static_cast<float>(got.gradient[9]), -0.5, 1e-6);
}

TYPED_TEST(GpuLoss, RepeatsBitForBitInPlaceAndAtAnyAddress) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const int64_t cols : {256, 1000, 50304}) {
    SCOPED_TRACE(fmt::format("cols {} seed {}", cols, kSeed));
    const int64_t rows = 33;
    const std::vector<A> logits = normals<A>(random, rows * cols, 3);
    const std::vector<int64_t> targets = some_targets(rows, cols);
    const Lost<A> first = this->run(logits, targets, cols, 2.0);
    for (int again = 0; again < 5; ++again) {
      const Lost<A> next = this->run(logits, targets, cols, 2.0, again, again % 2 == 1);
      expect_same_bits(next.result, first.result, "result");
      expect_same_bits(next.lse, first.lse, "lse");
      expect_same_bits(next.gradient, first.gradient, "gradient");
    }
  }
}

TYPED_TEST(GpuLoss, BothAtOnceHaveTheBitsOfOneAfterTheOther) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const int64_t cols : {1, 257, 1000, 4095, 4096, 50304}) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(fmt::format("cols {} shift {} seed {}", cols, shift, kSeed));
      const int64_t rows = 33;
      const std::vector<A> logits = normals<A>(random, shift + rows * cols, 3);
      const std::vector<int64_t> ids = some_targets(rows, cols);
      const Lost<A> apart =
          this->run({logits.begin() + shift, logits.end()}, ids, cols, 0.25, shift);
      const GpuArray<A> x(*this->device, this->stream, logits);
      const GpuArray<int64_t> targets(*this->device, this->stream, ids);
      const GpuArray<double> result(*this->device, this->stream, std::vector<double>(2, NAN)),
          scale(*this->device, this->stream, std::vector<double>(1, 0.25));
      this->table.cross_entropy_in_place(x.data() + shift, targets.data(), scale.data(),
                                         result.data(), rows, cols);
      expect_same_bits(result.get(), apart.result, "result");
      const std::vector<A> gradient = x.get();
      expect_same_bits({gradient.begin() + shift, gradient.end()}, apart.gradient, "gradient");
    }
  }
}

TYPED_TEST(GpuLoss, ARowsBitsDoNotDependOnTheRowsAroundIt) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  const int64_t cols = 1000;
  const std::vector<A> logits = normals<A>(random, 8 * cols);
  const Lost<A> all = this->run(logits, {0, 1, 2, 3, 4, 5, 6, 7}, cols);
  for (int64_t row = 0; row < 8; ++row) {
    const Lost<A> one =
        this->run({logits.begin() + row * cols, logits.begin() + (row + 1) * cols}, {row}, cols);
    EXPECT_EQ(one.lse[0], all.lse[row]);
    expect_same_bits(one.gradient,
                     {all.gradient.begin() + row * cols, all.gradient.begin() + (row + 1) * cols},
                     fmt::format("row {}", row));
  }
}

TYPED_TEST(GpuLoss, NoRowsHaveNoLoss) {
  const auto got = this->run({}, {}, 10);
  EXPECT_EQ(got.result, (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace tutti
