#include "grid/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace tutti {

namespace {

std::vector<uint64_t> whole(uint64_t seed, uint64_t pass, uint64_t n) {
  const Permutation permutation(seed, pass, n);
  std::vector<uint64_t> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = permutation(i);
  return values;
}

}  // namespace

TEST(Order, IsAPermutationForEverySmallN) {
  for (uint64_t seed : {0, 1, 77}) {
    for (uint64_t n = 1; n <= 300; ++n) {
      auto values = whole(seed, seed + 3, n);
      std::sort(values.begin(), values.end());
      for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(values[i], i) << "n " << n << " seed " << seed;
    }
  }
}

TEST(Order, IsAPermutationAroundTheBordersOfItsDomains) {
  for (uint64_t n : {4095u, 4096u, 4097u, 16384u, 16385u}) {
    const auto values = whole(5, 0, n);
    EXPECT_EQ(std::set<uint64_t>(values.begin(), values.end()).size(), n);
    EXPECT_LT(*std::max_element(values.begin(), values.end()), n);
  }
}

TEST(Order, DiffersBySeedAndByPass) {
  EXPECT_NE(whole(1, 0, 100), whole(2, 0, 100));
  EXPECT_NE(whole(1, 0, 100), whole(1, 1, 100));
  EXPECT_EQ(whole(1, 1, 100), whole(1, 1, 100));
}

TEST(Order, SpreadsEveryPositionOverAllValues) {
  // Over 3000 seeds, each of the 10 values should stand at position 0 about 300 times; five standard deviations are 82.
  constexpr uint64_t n = 10;
  for (uint64_t position : {0, 7}) {
    std::vector<int> counts(n);
    for (uint64_t seed = 0; seed < 3000; ++seed) ++counts[Permutation(seed, 0, n)(position)];
    for (int count : counts) EXPECT_NEAR(count, 300, 82);
  }
}

TEST(Order, LooksShuffled) {
  constexpr uint64_t n = 10000;
  const auto values = whole(9, 0, n);
  int ascents = 0, fixed = 0;
  for (uint64_t i = 0; i + 1 < n; ++i) ascents += values[i] < values[i + 1];
  for (uint64_t i = 0; i < n; ++i) fixed += values[i] == i;
  EXPECT_NEAR(ascents, n * 0.5, 150);  // five standard deviations of a random order
  EXPECT_LE(fixed, 8);                 // one is expected
}

TEST(Order, WorksAtSizesNoMemoryHolds) {
  for (uint64_t n : {uint64_t{1} << 40, (uint64_t{1} << 62) + 1, ~uint64_t{0}}) {
    const Permutation permutation(1, 0, n);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 200; ++i) {
      const uint64_t value = permutation(i);
      EXPECT_LT(value, n);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), 200u);
  }
}

TEST(Order, RecordAtGoesThroughAllRecordsOncePerPassInAnotherOrderEachTime) {
  constexpr uint64_t n = 37;
  std::vector<std::vector<uint64_t>> passes(3);
  for (uint64_t position = 0; position < 3 * n; ++position) passes[position / n].push_back(record_at(4, position, n));
  for (uint64_t pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(passes[pass], whole(4, pass, n));
    EXPECT_EQ(std::set<uint64_t>(passes[pass].begin(), passes[pass].end()).size(), n);
  }
  EXPECT_NE(passes[0], passes[1]);
}

TEST(Order, IsPinned) {
  // The order is part of every job's result: other values here mean that all golden losses change.
  EXPECT_EQ(whole(1, 0, 8), (std::vector<uint64_t>{3, 6, 4, 2, 0, 1, 7, 5}));
}

TEST(Order, HoldsOutAboutTheFractionAskedFor) {
  constexpr int n = 20000;
  for (double fraction : {0.0, 0.01, 0.1, 0.5, 1.0}) {
    int held = 0;
    for (uint64_t i = 0; i < n; ++i) held += held_out(3, i, fraction);
    EXPECT_NEAR(held, fraction * n, 5 * std::sqrt(fraction * (1 - fraction) * n));
  }
}

TEST(Order, ALargerFractionHoldsOutTheSameRecordsAndMore) {
  int differs = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    if (held_out(3, i, 0.1)) EXPECT_TRUE(held_out(3, i, 0.2));
    differs += held_out(3, i, 0.5) != held_out(4, i, 0.5);
  }
  EXPECT_GT(differs, 300);  // keyed by the seed
}

}  // namespace tutti
