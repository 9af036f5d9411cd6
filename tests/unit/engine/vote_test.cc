// The vote: its merge does not depend on who votes first.
#include "engine/vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace tutti {
namespace {

Vote vote(double squares, double loss, int64_t targets, uint32_t stop = 0) {
  Vote v;
  v.squares.add(squares);
  v.loss.add(loss);
  v.targets.add(static_cast<double>(targets));
  v.stop = stop;
  return v;
}

TEST(Vote, GivesTheMeanLossAndTheNormOfTheMeanGradient) {
  const std::vector<Vote> votes = {vote(9, 6, 1), vote(7, 2, 3)};
  const Vote all = merge(votes);
  EXPECT_EQ(all.targets.value(), 4);
  EXPECT_DOUBLE_EQ(all.mean_loss(), 2);
  EXPECT_DOUBLE_EQ(all.gradient_norm(), 1);  // sqrt(16) / 4
  EXPECT_TRUE(all.finite());
}

TEST(Vote, HasTheSameBitsInEveryOrderAndGrouping) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<Vote> votes;
  for (int r = 0; r < 9; ++r)
    votes.push_back(
        vote(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 120) - 60),
             std::ldexp(static_cast<double>(random()), -70), static_cast<int64_t>(random() % 100)));
  const Vote expected = merge(votes);
  for (int trial = 0; trial < 50; ++trial) {
    std::shuffle(votes.begin(), votes.end(), random);
    Vote left = votes[0], right = votes[5];
    for (int r = 1; r < 5; ++r) left.merge(votes[r]);
    for (int r = 6; r < 9; ++r) right.merge(votes[r]);
    right.merge(left);
    EXPECT_EQ(right.squares.value(), expected.squares.value());
    EXPECT_EQ(right.mean_loss(), expected.mean_loss());
    EXPECT_EQ(right.gradient_norm(), expected.gradient_norm());
  }
}

TEST(Vote, IsNotFiniteWhereOneRankIsNot) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const Vote& bad :
       {vote(infinity, 1, 1), vote(1, nan, 1), vote(1, -infinity, 1), vote(nan, 1, 1)}) {
    EXPECT_FALSE(merge(std::vector<Vote>{vote(1, 1, 1), bad}).finite());
    EXPECT_FALSE(merge(std::vector<Vote>{bad, vote(1, 1, 1)}).finite());
  }
}

TEST(Vote, StopsAllWhereOneRankWasAskedTo) {
  EXPECT_EQ(merge(std::vector<Vote>{vote(1, 1, 1), vote(1, 1, 1, 1), vote(1, 1, 1)}).stop, 1u);
  EXPECT_EQ(merge(std::vector<Vote>{vote(1, 1, 1), vote(1, 1, 1)}).stop, 0u);
}

TEST(Vote, SaysWhetherAnyRankIsStillWriting) {
  Vote busy = vote(1, 1, 1);
  busy.saving = 1;
  EXPECT_EQ(merge(std::vector<Vote>{vote(1, 1, 1), busy, vote(1, 1, 1)}).saving, 1u);
  EXPECT_EQ(merge(std::vector<Vote>{busy, busy}).stop, 0u);
  EXPECT_EQ(merge(std::vector<Vote>{vote(1, 1, 1, 1), vote(1, 1, 1)}).saving, 0u);
}

TEST(Vote, WithoutTargetsIsZeroAndNotADivisionByIt) {
  const Vote none = merge(std::vector<Vote>{Vote{}, Vote{}});
  EXPECT_EQ(none.mean_loss(), 0);
  EXPECT_EQ(none.gradient_norm(), 0);
}

TEST(Vote, TravelsAsBytes) { EXPECT_TRUE(std::is_trivially_copyable_v<Vote>); }

}  // namespace
}  // namespace tutti
