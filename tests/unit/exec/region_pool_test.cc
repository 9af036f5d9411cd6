// The pool's bookkeeping against a plain model of memory: random sequences over several regions.
#include "exec/region_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace tutti {
namespace {

constexpr int64_t kStep = RegionPool::kStep;
constexpr uintptr_t kBase = 0x7f0000000000;

TEST(RegionPool, HandsOutTheSmallestBlockThatFitsAndTheLowestOfEquals) {
  RegionPool pool;
  pool.add(kBase, 100 * kStep);
  std::vector<uintptr_t> taken;
  for (const int64_t steps : {4, 1, 2, 1, 2, 1}) taken.push_back(pool.take(steps * kStep));
  EXPECT_EQ(taken[1], kBase + 4 * kStep);
  for (const int i : {0, 2, 4}) EXPECT_TRUE(pool.give_back(taken[i]));
  // Free: 4 steps, 2 steps, 2 steps, and the rest of the region.
  EXPECT_EQ(pool.take(2 * kStep), taken[2]);
  EXPECT_EQ(pool.take(2 * kStep - 1), taken[4]);
  EXPECT_EQ(pool.take(3 * kStep), taken[0]);
  EXPECT_EQ(pool.take(1), taken[0] + 3 * kStep);
  EXPECT_EQ(pool.take(5 * kStep), taken[5] + kStep);
}

TEST(RegionPool, SaysWhenNothingFitsAndTakesWholeRegions) {
  RegionPool pool;
  EXPECT_EQ(pool.take(1), 0u);
  pool.add(kBase, 8 * kStep + 100);
  EXPECT_EQ(pool.reserved(), 8 * kStep);
  EXPECT_EQ(pool.take(8 * kStep + 1), 0u);
  EXPECT_EQ(pool.take(8 * kStep), kBase);
  EXPECT_EQ(pool.take(1), 0u);
  EXPECT_EQ(pool.largest_free(), 0);
  EXPECT_TRUE(pool.give_back(kBase));
  EXPECT_EQ(pool.largest_free(), 8 * kStep);
}

TEST(RegionPool, NeverJoinsTwoRegionsThatTouch) {
  RegionPool pool;
  pool.add(kBase + 4 * kStep, 4 * kStep);
  pool.add(kBase, 4 * kStep);
  EXPECT_EQ(pool.take(5 * kStep), 0u);
  const uintptr_t low = pool.take(4 * kStep), high = pool.take(4 * kStep);
  EXPECT_TRUE(pool.give_back(low));
  EXPECT_TRUE(pool.give_back(high));
  EXPECT_EQ(pool.largest_free(), 4 * kStep);
}

TEST(RegionPool, RefusesWhatItDidNotHandOut) {
  RegionPool pool;
  pool.add(kBase, 8 * kStep);
  const uintptr_t block = pool.take(2 * kStep);
  EXPECT_FALSE(pool.give_back(block + kStep));
  EXPECT_FALSE(pool.give_back(block + 2 * kStep));  // a free block
  EXPECT_FALSE(pool.give_back(kBase - kStep));
  EXPECT_TRUE(pool.give_back(block));
  EXPECT_FALSE(pool.give_back(block));
  EXPECT_EQ(pool.in_use(), 0);
}

// The model: which steps of which region are in use. Its best fit is found by looking at every gap.
class Model {
 public:
  void add(uintptr_t start, int64_t steps) { regions_[start] = std::vector<char>(steps); }
  uintptr_t best_fit(int64_t steps) const {
    uintptr_t best = 0;
    int64_t best_size = INT64_MAX;
    for (const auto& [start, used] : regions_) {
      const auto size = static_cast<int64_t>(used.size());
      for (int64_t i = 0; i < size;) {
        if (used[i]) {
          ++i;
          continue;
        }
        int64_t end = i;
        while (end < size && !used[end]) ++end;
        if (end - i >= steps && end - i < best_size) {
          best_size = end - i;
          best = start + i * kStep;
        }
        i = end;
      }
    }
    return best;
  }
  void set(uintptr_t at, int64_t steps, bool used) {
    const auto region = std::prev(regions_.upper_bound(at));
    const auto first = static_cast<int64_t>((at - region->first) / kStep);
    for (int64_t i = first; i < first + steps; ++i) {
      ASSERT_NE(region->second.at(i), used)
          << "step " << i << " of the region at " << region->first;
      region->second[i] = used;
    }
  }

 private:
  std::map<uintptr_t, std::vector<char>> regions_;
};

TEST(RegionPool, AgreesWithAPlainModelOverRandomSequences) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    RegionPool pool;
    Model model;
    uintptr_t end = kBase;
    const auto grow = [&](int64_t steps) {
      end += (random() % 2) * 64 * kStep;  // some regions touch
      pool.add(end, steps * kStep);
      model.add(end, steps);
      end += steps * kStep;
    };
    grow(64 + random() % 200);
    std::map<uintptr_t, int64_t> held;
    int64_t in_use = 0;
    for (int i = 0; i < 2000; ++i) {
      if (held.empty() || random() % 100 < 55) {
        const int64_t bytes = 1 + random() % ((random() % 8 == 0 ? 60 : 6) * kStep);
        const int64_t steps = (bytes + kStep - 1) / kStep;
        const uintptr_t at = pool.take(bytes);
        ASSERT_EQ(at, model.best_fit(steps)) << "call " << i << " wants " << steps << " steps";
        if (at == 0) {
          if (pool.reserved() < 2000 * kStep) grow(64 + random() % 200);
          continue;
        }
        model.set(at, steps, true);
        held[at] = steps;
        in_use += steps * kStep;
      } else {
        const auto which = std::next(held.begin(), random() % held.size());
        ASSERT_TRUE(pool.give_back(which->first));
        model.set(which->first, which->second, false);
        in_use -= which->second * kStep;
        held.erase(which);
      }
      ASSERT_EQ(pool.in_use(), in_use);
    }
    for (const auto& [at, steps] : held) ASSERT_TRUE(pool.give_back(at));
    EXPECT_EQ(pool.in_use(), 0);
    EXPECT_LE(pool.blocks(), pool.reserved() / (64 * kStep)) << "free neighbours were not joined";
  }
}

}  // namespace
}  // namespace tutti
