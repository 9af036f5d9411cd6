#include "grid/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/processor.h"
#include "grid/order_kernels.h"

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
  // Over 3000 seeds, each of the 10 values should stand at position 0 about 300 times; five
  // standard deviations are 82.
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
  for (uint64_t position = 0; position < 3 * n; ++position)
    passes[position / n].push_back(record_at(4, position, n));
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

TEST(Order, ANumberOfHeldOutRecordsIsExactAndKeyed) {
  for (uint64_t n : {1, 2, 16, 1000}) {
    for (uint64_t count : {uint64_t{0}, uint64_t{1}, n / 4, n}) {
      uint64_t held = 0;
      for (uint64_t i = 0; i < n; ++i) held += held_out_of(3, i, n, count);
      EXPECT_EQ(held, count) << n;
    }
  }
  int differs = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    if (held_out_of(3, i, 1000, 100)) EXPECT_TRUE(held_out_of(3, i, 1000, 200));
    differs += held_out_of(3, i, 1000, 500) != held_out_of(4, i, 1000, 500);
  }
  EXPECT_GT(differs, 300);
}

TEST(Order, ALargerFractionHoldsOutTheSameRecordsAndMore) {
  int differs = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    if (held_out(3, i, 0.1)) EXPECT_TRUE(held_out(3, i, 0.2));
    differs += held_out(3, i, 0.5) != held_out(4, i, 0.5);
  }
  EXPECT_GT(differs, 300);  // keyed by the seed
}

TEST(Order, ABatchOfRecordsIsTheSameAsOneByOneOverPassBordersToo) {
  for (uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{5}, uint64_t{37}, uint64_t{1000},
                     uint64_t{60000}, (uint64_t{1} << 40) + 12345, uint64_t{1} << 62}) {
    const Order order{.seed = 11, .n = n, .weights = nullptr};
    for (uint64_t first : {uint64_t{0}, uint64_t{3}, n - 1, 2 * n - 2, uint64_t{1'000'000'000}}) {
      for (size_t count : {0, 1, 7, 16, 17, 300}) {
        std::vector<int64_t> records(count);
        order.records(first, records);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(static_cast<uint64_t>(records[i]), record_at(11, first + i, n))
              << "n " << n << " first " << first << " place " << i << " of " << count;
          ASSERT_EQ(order.record(first + i), record_at(11, first + i, n));
        }
      }
    }
  }
}

TEST(Order, EveryCodePathPermutesAlike) {
  static constexpr decltype(&isa_portable::feistel) kFeistel[] = TUTTI_TABLE_OF(feistel);
  const PhiloxStream stream = philox_stream({5, Purpose::kOrder, 9, 0});
  for (int half_bits : {1, 7, 20, 32}) {
    std::vector<uint64_t> places(4 * kFeistelLanes);
    const auto count = static_cast<int64_t>(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      places[i] = i * 0x9E3779B97F4A7C15 &
                  (half_bits == 32 ? ~uint64_t{0} : (uint64_t{1} << 2 * half_bits) - 1);
    }
    std::vector<uint64_t> expected = places;
    isa_portable::feistel(stream, half_bits, expected.data(), count);
    for (const CodePath path : runnable_paths()) {
      std::vector<uint64_t> permuted = places;
      on_path(kFeistel, path)(stream, half_bits, permuted.data(), count);
      EXPECT_EQ(permuted, expected) << half_bits << " " << name_of(path);
    }
  }
}

TEST(Order, DrawsByWeightAsOftenAsTheWeightsSay) {
  const std::vector<double> weights = {1, 0, 3, 0.5, 5.5, 0};
  const Order order{.seed = 3, .n = 6, .weights = std::make_shared<Alias>(weights)};
  constexpr int kDraws = 40000;
  std::vector<int64_t> records(kDraws);
  order.records(1'000'000'007, records);
  std::vector<int> counts(6);
  for (const int64_t record : records) ++counts[static_cast<size_t>(record)];
  for (size_t i = 0; i < 6; ++i) {
    const double p = weights[i] / 10;
    // five standard deviations
    EXPECT_NEAR(counts[i], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << i;
  }
}

TEST(Order, ADrawByWeightIsKeyedBySeedAndPositionAlone) {
  const auto weights = std::make_shared<Alias>(std::vector<double>(100, 2.0));
  const Order order{.seed = 3, .n = 100, .weights = weights},
      other{.seed = 4, .n = 100, .weights = weights};
  std::vector<int64_t> whole(50), differently(50);
  order.records(20, whole);
  other.records(20, differently);
  for (uint64_t i = 0; i < 50; ++i)
    EXPECT_EQ(order.record(20 + i), static_cast<uint64_t>(whole[i]));
  EXPECT_NE(whole, differently);
}

TEST(Order, OneHeavyRecordAmongManyLightOnesIsDrawnByItsWeight) {
  std::vector<double> weights(10000, 1.0);
  weights[77] = 10000;
  const Order order{.seed = 1, .n = weights.size(), .weights = std::make_shared<Alias>(weights)};
  std::vector<int64_t> records(20000);
  order.records(0, records);
  const auto heavy = std::count(records.begin(), records.end(), 77);
  EXPECT_NEAR(static_cast<double>(heavy), 10000, 5 * std::sqrt(5000.0));
}

TEST(Order, WeightsThatAreNoneAreRefused) {
  for (const std::vector<double>& weights :
       {std::vector<double>{}, {0, 0}, {1, -1}, {1, std::nan("")}, {1, HUGE_VAL}}) {
    EXPECT_THROW(Alias{weights}, Error);
  }
}

TEST(Order, TheDigestTellsApartOrdersThatDifferInTwoSamples) {
  std::set<uint64_t> digests;
  for (uint64_t position = 0; position < 300; ++position) {
    for (uint64_t record = 0; record < 300; ++record)
      digests.insert(order_digest(position, record));
  }
  EXPECT_EQ(digests.size(), 300u * 300u);
  std::set<uint64_t> swapped;
  for (uint64_t a = 0; a < 60; ++a) {
    for (uint64_t b = 0; b < a; ++b) {
      uint64_t sum = 0;
      for (uint64_t i = 0; i < 60; ++i) sum += order_digest(i, i == a ? b : i == b ? a : i);
      swapped.insert(sum);
    }
  }
  EXPECT_EQ(swapped.size(), 60u * 59u / 2);
}

TEST(Order, FoldsPartTheRecordsEvenlyAndByTheSeed) {
  constexpr int kRecords = 20003, kParts = 5;
  std::vector<int> counts(kParts);
  int differs = 0;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const int64_t fold = fold_of(3, i, kRecords, kParts);
    ASSERT_TRUE(fold >= 0 && fold < kParts);
    ++counts[static_cast<size_t>(fold)];
    differs += fold != fold_of(4, i, kRecords, kParts);
  }
  for (const int count : counts)
    EXPECT_TRUE(count == kRecords / kParts || count == kRecords / kParts + 1) << count;
  EXPECT_NEAR(differs, kRecords * 0.8, 5 * std::sqrt(kRecords * 0.16));
}

}  // namespace tutti
