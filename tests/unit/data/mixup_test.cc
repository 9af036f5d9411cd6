// Mixup: every row with its mirror row, by shares that are drawn from Beta(a, a).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/images/augment.h"

namespace tutti {
namespace {

constexpr uint64_t kSeed = 21;

/// Of distinct values.
at::Tensor images_of(int64_t rows) {
  return at::arange(1, 6 * rows + 1, at::kFloat).div_(6.0 * rows).reshape({rows, 1, 2, 3});
}

/// Images, classes, the classes of the other images, and their shares.
std::vector<at::Tensor> mixed(double alpha, int64_t rows, int64_t first) {
  AugmentConfig config{};
  config.mixup = alpha;
  std::vector<at::Tensor> tensors{images_of(rows), at::arange(100, 100 + rows, at::kLong),
                                  at::zeros({rows}, at::kLong), at::zeros({rows})};
  Augment(config, {1, 2, 3}, kSeed).apply(tensors, first);
  return tensors;
}

TEST(Mixup, MixesEveryRowWithItsMirrorRowByItsOwnShare) {
  for (const int64_t rows : {1, 4, 5}) {
    const std::vector<at::Tensor> got = mixed(0.5, rows, 77);
    const at::Tensor images = images_of(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t other = rows - 1 - row;
      const float mix = got[3][row].item<float>();
      EXPECT_EQ(got[1][row].item<int64_t>(), 100 + row);
      EXPECT_EQ(got[2][row].item<int64_t>(), 100 + other);
      ASSERT_TRUE(mix >= 0 && mix <= 1);
      // The middle row is its own partner, and stays as it was.
      const at::Tensor expected =
          row == other ? images[row] : images[row] * (1 - mix) + images[other] * mix;
      EXPECT_TRUE(at::equal(got[0][row], expected)) << row << " of " << rows;
    }
  }
}

TEST(Mixup, SharesFollowTheBetaDistribution) {
  constexpr int64_t kRows = 20000;
  for (const double alpha : {0.1, 0.4, 1.0, 1.5, 8.0}) {
    const at::Tensor mix = mixed(alpha, kRows, 0)[3];
    const auto* x = mix.const_data_ptr<float>();
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const double d = x[i] - 0.5;
      sum += d;
      squares += d * d;
      fourth += d * d * d * d;
    }
    // Moments of Beta(a, a): variance 1/(4(2a+1)), fourth 3/(16(2a+1)(2a+3)); five standard
    // deviations of the means.
    const double variance = 1 / (4 * (2 * alpha + 1)),
                 m4 = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3));
    EXPECT_NEAR(sum / kRows, 0, 5 * std::sqrt(variance / kRows)) << alpha;
    EXPECT_NEAR(squares / kRows, variance, 5 * std::sqrt((m4 - variance * variance) / kRows))
        << alpha;
    // d^8 is at most d^4 / 16
    EXPECT_NEAR(fourth / kRows, m4, 5 * std::sqrt(m4 / 16 / kRows)) << alpha;
  }
}

TEST(Mixup, IsDefinedAtTheEndsOfItsRange) {
  for (const double alpha : {1e-3, 100.0}) {
    const at::Tensor mix = mixed(alpha, 1000, 5)[3];
    EXPECT_TRUE(mix.isfinite().all().item<bool>());
    // five standard deviations of the widest: 0.5 / sqrt(1000) * 5
    EXPECT_NEAR(mix.mean().item<float>(), 0.5, 0.08);
  }
}

}  // namespace
}  // namespace tutti
