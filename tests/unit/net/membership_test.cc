#include "net/membership.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Membership, BeginsWithAllWorkersInTheirOrderOnTheirHosts) {
  const Membership first = first_epoch(4, 2, 2, "127.0.0.1");
  EXPECT_EQ(first.epoch, 0u);
  EXPECT_EQ(first.members, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(first.rank, 2);
  EXPECT_EQ(first.rank_hosts(), (std::vector<int>{0, 0, 1, 1}));
}

TEST(Membership, OfTheNextEpochGivesRanksByItsOwnOrderAndLeavesSparesOut) {
  const Membership first = first_epoch(4, 0, 2, "");
  const Membership next = next_epoch(first, {3, 0}, 0);
  EXPECT_EQ(next.epoch, 1u);
  EXPECT_EQ(next.rank, 1);
  EXPECT_EQ(next.rank_hosts(), (std::vector<int>{1, 0}));
  EXPECT_FALSE(next_epoch(first, {3, 0}, 1).takes_part());
}

TEST(Membership, OfEverybodyIsTheSameForMembersAndSpares) {
  // Two workers that remember other members, since an epoch failed for one of them.
  const Membership first = first_epoch(4, 1, 1, "");
  const Membership small = next_epoch(first, {0, 1}, 1);
  Membership one = everybody(next_epoch(first, {3, 0}, 1), 1);
  Membership other = everybody(next_epoch(small, {3, 0}, 3), 3);
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(other.rank, 3);
  EXPECT_EQ(one.members, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(one.members, other.members);
}

}  // namespace
}  // namespace tutti
