// Reductions among threads: every layout gives the bits of one rank, many steps in a row, and says how many bytes it
// sends.
#include "comm/reduction.h"

#include <gtest/gtest.h>

#include <random>

#include "comm/groups.h"
#include "support/forked_ranks.h"
#include "support/reduction_case.h"

namespace tutti {
namespace {

using namespace testing_support;

class ReductionOfThreads : public testing::TestWithParam<int> {};

TEST_P(ReductionOfThreads, HasTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<ReductionCase> all = layouts(GetParam(), seed);
  expect_all_well(true, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const ReductionCase& c : all) run_case(c, "inproc", rendezvous, 2);
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, ReductionOfThreads, testing::Range(1, 6));

TEST(Reduction, HoldsPartialsUntilAllHaveReleasedThem) {
  ReductionCase c{.ranks = 3, .lanes = 8, .hosts = {0, 0, 0}, .result_size = 97, .seed = std::random_device{}()};
  expect_all_well(true, 3, [&](int, Rendezvous& rendezvous) { run_case(c, "inproc", rendezvous, 400); });
  c.fold = FoldAt::kRoot;
  expect_all_well(true, 3, [&](int, Rendezvous& rendezvous) { run_case(c, "inproc", rendezvous, 400); });
}

TEST(Reduction, OfTwoLevelsHoldsPartialsUntilAllHaveReleasedThem) {
  ReductionCase c{.ranks = 4, .lanes = 7, .hosts = {0, 0, 1, 1}, .result_size = 97, .seed = std::random_device{}()};
  expect_all_well(true, 4, [&](int, Rendezvous& rendezvous) { run_case(c, "inproc", rendezvous, 300); });
}

TEST(Reduction, CutsLongSlicesIntoBlocks) {
  ReductionCase c{.ranks = 2, .lanes = 3, .hosts = {0, 1}, .result_size = 700'000, .shared = true, .seed = 11};
  expect_all_well(true, 2, [&](int, Rendezvous& rendezvous) { run_case(c, "inproc", rendezvous, 2); });
}

TEST(Reduction, SendsNoBytesWhereWindowsReach) {
  const ReductionSpec spec = ReductionCase{.ranks = 4, .lanes = 8, .hosts = {0, 0, 0, 0}}.spec();
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) EXPECT_EQ(reduction_bytes(spec, "shm", from, to), 0);
  }
}

TEST(Reduction, SendsARingsBytesWhereEveryRankOwnsOneSubtree) {
  ReductionSpec spec = ReductionCase{.ranks = 4, .lanes = 8, .hosts = {0, 0, 0, 0}, .result_size = 4096}.spec();
  spec.slices = {{0, 1024}, {1024, 2048}, {2048, 3072}, {3072, 4096}};
  spec.pieces = {{0, 4096, {0}}};
  for (int from = 0; from < 4; ++from) {
    int64_t sent = 0;
    for (int to = 0; to < 4; ++to) sent += from == to ? 0 : reduction_bytes(spec, "tcp", from, to);
    EXPECT_EQ(sent, 2 * 4096 * 4 * 3 / 4);
  }
}

TEST(Reduction, BetweenTwoHostsOfTwoRanksSendsTheGradientOnceEachWay) {
  for (int lanes : {4, 8, 16}) {
    ReductionCase c{.ranks = 4, .lanes = lanes, .hosts = {0, 0, 1, 1}, .result_size = 100'000};
    ReductionSpec spec = c.spec();
    spec.slices = {{0, 25'000}, {25'000, 50'000}, {50'000, 75'000}, {75'000, 100'000}};
    int64_t there = 0, back = 0;
    for (int a : {0, 1}) {
      for (int b : {2, 3}) {
        there += reduction_bytes(spec, "shm", a, b);
        back += reduction_bytes(spec, "shm", b, a);
      }
    }
    EXPECT_LE(there, 1.05 * 4 * c.result_size) << lanes;
    EXPECT_LE(back, 1.05 * 4 * c.result_size) << lanes;
    EXPECT_GE(there, 4 * c.result_size) << lanes;
  }
}

TEST(Reduction, FallsBackToMessagesWhereHostsDifferInSizeOrLanesAreScattered) {
  EXPECT_EQ(groups_of(ReductionCase{.ranks = 4, .lanes = 8, .hosts = {0, 0, 1, 1}}.spec(), true).size(), 2);
  EXPECT_EQ(groups_of(ReductionCase{.ranks = 3, .lanes = 8, .hosts = {0, 0, 1}}.spec(), true).size(), 3);
  EXPECT_EQ(groups_of(ReductionCase{.ranks = 4, .lanes = 8, .hosts = {0, 1, 0, 1}}.spec(), true).size(), 4);
  EXPECT_EQ(groups_of(ReductionCase{.ranks = 4, .lanes = 8, .hosts = {0, 0, 0, 0}}.spec(), false).size(), 4);
}

TEST(Reduction, NamesTheBucketTheStepAndTheRankThatIsMissing) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}}) {
    ReductionCase c{.ranks = 3, .lanes = 3, .hosts = hosts, .bucket = 5};
    expect_all_well(true, 3, [&](int rank, Rendezvous& r) { expect_missing_rank(c, "inproc", rank, r); });
  }
}

}  // namespace
}  // namespace tutti
