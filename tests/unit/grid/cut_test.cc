#include "grid/cut.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace tutti {
namespace {

std::vector<int64_t> ends_of(const std::vector<double>& costs, const std::vector<int>& homes) {
  std::vector<int64_t> ends;
  int64_t begin = 0;
  for (const Range& range : cut_by_cost(costs, homes)) {
    EXPECT_EQ(range.begin, begin);
    EXPECT_LT(range.begin, range.end);
    ends.push_back(begin = range.end);
  }
  EXPECT_EQ(begin, static_cast<int64_t>(costs.size()));
  return ends;
}

TEST(CutByCost, TheDearestPartIsAsCheapAsCanBe) {
  EXPECT_EQ(ends_of({1, 1, 1, 1, 1, 1}, {0, 1, 2}), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_EQ(ends_of({9, 1, 1, 1, 1, 1}, {0, 1}), (std::vector<int64_t>{1, 6}));
}

TEST(CutByCost, AHomeOfSeveralPartsCountsTheirSum) {
  // Even parts would give the V's first stage 20.2 and the other one 40.
  const std::vector<double> costs{0.1, 10, 10, 10, 10, 10, 10, 0.1};
  const std::vector<int> v{0, 1, 1, 0};
  std::vector<double> home(2, 0);
  const std::vector<Range> parts = cut_by_cost(costs, v);
  for (size_t part = 0; part < parts.size(); ++part)
    for (int64_t i = parts[part].begin; i < parts[part].end; ++i) home[v[part]] += costs[i];
  EXPECT_NEAR(*std::max_element(home.begin(), home.end()), 30.2, 1e-9);
  ends_of(costs, v);
}

TEST(CutByCost, PartsSlideWhereNoEndHelpsAlone) {
  // Six layers and a head of three: moving one end at a time stops at a home of 4.
  EXPECT_EQ(ends_of({0, 1, 1, 1, 1, 1, 1, 3}, {0, 1, 2, 2, 1, 0}),
            (std::vector<int64_t>{1, 2, 4, 5, 7, 8}));
}

TEST(CutByCost, EveryPartHasSomething) {
  EXPECT_EQ(ends_of({1, 0, 0, 0}, {0, 1, 1, 0}), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_DEATH(cut_by_cost({1, 1}, {0, 1, 2}), "3 parts of 2");
}

}  // namespace
}  // namespace tutti
