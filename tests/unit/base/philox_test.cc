#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tutti {

using Words = std::array<uint32_t, 4>;

TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox_raw({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t f = 0xffffffff;
  EXPECT_EQ(philox_raw({f, f, f, f}, {f, f}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_raw({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, AStreamIsTheRawFunctionOverItsBlockIndex) {
  const PhiloxKey key{7, Purpose::kTest, 1, 2};
  const PhiloxStream stream = philox_stream(key);
  const uint64_t index = (uint64_t{3} << 32) + 5;
  EXPECT_EQ(philox(key, index),
            philox_raw({stream.counter[0], stream.counter[1], 5, 3}, stream.key));
}

TEST(Philox, EveryPartOfTheKeyMakesAnotherStream) {
  std::set<Words> seen;
  const uint64_t values[] = {0, 1, 2, uint64_t{1} << 32, ~uint64_t{0}};
  size_t streams = 0;
  for (uint64_t seed : values) {
    for (Purpose purpose : {Purpose::kInit, Purpose::kDropout, Purpose::kTest}) {
      for (uint64_t a : values) {
        for (uint64_t b : values) {
          seen.insert(philox({seed, purpose, a, b}, 0));
          ++streams;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), streams);
}

TEST(Philox, UniformDrawsLieInTheirRangeAroundOneHalf) {
  const PhiloxKey key{3, Purpose::kTest, 0, 0};
  double sum = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const float u = philox_uniform(key, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
  }
  // The standard error of the mean is 0.289 / sqrt(20000) = 0.002; the draws are fixed by the seed.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
}

TEST(Philox, IntegersBelowNHitEveryValueAboutEquallyOften) {
  const PhiloxKey key{4, Purpose::kTest, 0, 0};
  std::array<int, 7> counts{};
  for (int i = 0; i < 7000; ++i) ++counts.at(philox_below(key, i, 7));
  for (int count : counts) EXPECT_NEAR(count, 1000, 150);  // five standard deviations of a count
  EXPECT_EQ(philox_below(key, 0, 1), 0u);
}

TEST(Philox, NormalDrawsHaveMeanZeroVarianceOneAndLightTails) {
  const PhiloxKey key{5, Purpose::kTest, 0, 0};
  constexpr int kDraws = 40000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = philox_normal(key, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  // Four standard errors of each; the draws are fixed by the seed.
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
  EXPECT_NEAR(fourth / kDraws, 3, 0.2);
}

}  // namespace tutti
