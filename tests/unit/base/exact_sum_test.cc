#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"

namespace tutti {

namespace {

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (double term : terms) sum.add(term);
  return sum.value();
}

/// Terms of both signs with exponents in [low, high], keyed by the seed.
std::vector<double> random_terms(uint64_t seed, int n, int low, int high) {
  const PhiloxKey key{seed, Purpose::kTest, 1, 0};
  std::vector<double> terms(n);
  for (int i = 0; i < n; ++i) {
    const int exponent = low + static_cast<int>(philox_below(key, 2 * i, high - low + 1));
    terms[i] = std::ldexp(philox_normal(key, 1000000 + i), exponent);
  }
  return terms;
}

template <typename T>
void shuffle(std::vector<T>& values, uint64_t seed) {
  const PhiloxKey key{seed, Purpose::kTest, 2, 0};
  for (size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[philox_below(key, i, i)]);
}

}  // namespace

TEST(ExactSum, DoesNotDependOnTheOrderOfItsTerms) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    auto terms = random_terms(seed, 200, -300, 300);
    const double expected = sum_of(terms);
    for (uint64_t order = 0; order < 5; ++order) {
      shuffle(terms, 100 * seed + order);
      ASSERT_EQ(sum_of(terms), expected);
    }
  }
}

TEST(ExactSum, DoesNotDependOnHowPartialSumsWereMerged) {
  const auto terms = random_terms(1, 300, -200, 200);
  ExactSum whole;
  for (double term : terms) whole.add(term);
  for (size_t parts = 1; parts <= 7; ++parts) {
    std::vector<ExactSum> partial(parts);
    for (size_t i = 0; i < terms.size(); ++i) partial[i * 31 % parts].add(terms[i]);
    ExactSum merged;
    for (const auto& part : partial) merged.merge(part);
    EXPECT_EQ(merged, whole) << parts << " parts";
    EXPECT_EQ(merged.value(), whole.value());
  }
}

TEST(ExactSum, EqualsASumInQuadruplePrecisionWhereThatIsExact) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    // 53 bits of mantissa, 50 of spread and 10 of carries fit into the 113 of the reference: its
    // additions do not round.
    const auto terms = random_terms(seed, 1000, -25, 25);
    __float128 reference = 0;
    for (double term : terms) reference += term;
    ASSERT_EQ(sum_of(terms), static_cast<double>(reference)) << "seed " << seed;
  }
}

TEST(ExactSum, OneTermComesBackUnchanged) {
  for (double term :
       {0.0, 1.0, -1.0, 0x1p320, -0x1.fffffffffffffp319, 0x1.0000000000001p-300, 3.14159, -1e-80}) {
    EXPECT_EQ(sum_of({term}), term);
  }
}

TEST(ExactSum, KeepsASmallTermBesideLargeOnesThatCancel) {
  EXPECT_EQ(sum_of({0x1p300, 0x1p-300, -0x1p300}), 0x1p-300);
  EXPECT_EQ(sum_of({0x1p300, -0x1p-300, -0x1p300}), -0x1p-300);
}

TEST(ExactSum, RoundsOnceToNearestWithTiesToEven) {
  EXPECT_EQ(sum_of({1.0, 0x1p-53}), 1.0);
  EXPECT_EQ(sum_of({1.0, 0x1p-53, 0x1p-340}), 1.0 + 0x1p-52);
  EXPECT_EQ(sum_of({1.0, 0x1p-52, 0x1p-53}), 1.0 + 0x1p-51);
  EXPECT_EQ(sum_of({-1.0, -0x1p-53, -0x1p-340}), -1.0 - 0x1p-52);
}

TEST(ExactSum, CutsTermsBelowItsLowestBitEachAlone) {
  EXPECT_EQ(sum_of({0x1p-361, 0x1p-361}), 0.0);
  EXPECT_EQ(sum_of({0x1.8p-360}), 0x1p-360);
  EXPECT_EQ(sum_of({std::numeric_limits<double>::denorm_min(), 1.0}), 1.0);
}

TEST(ExactSum, InfinitiesAndNansStick) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1.0, kInfinity, -5.0}), kInfinity);
  EXPECT_EQ(sum_of({-1e200, 1.0}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1.0})));
  ExactSum sum, other;
  sum.add(1.0);
  EXPECT_TRUE(sum.finite());
  other.add(kInfinity);
  sum.merge(other);
  EXPECT_FALSE(sum.finite());
}

TEST(ExactSum, ManyEqualTermsOfBothSignsLeaveNothing) {
  ExactSum sum;
  for (int i = 0; i < 100000; ++i) sum.add(0.1);
  for (int i = 0; i < 100000; ++i) sum.add(-0.1);
  EXPECT_EQ(sum.value(), 0.0);
  EXPECT_EQ(sum, ExactSum());
}

}  // namespace tutti
