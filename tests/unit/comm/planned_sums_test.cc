// The sums of plans among threads: every layout gives the bits of one rank, many steps in a row, in
// as many bytes as the plan says.
#include "support/planned_sums.h"

#include <gtest/gtest.h>

#include <random>

#include "support/forked_ranks.h"

namespace tutti {
namespace {

using namespace testing_support;

class PlannedSumsOfThreads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PlannedSumsOfThreads, testing::Range(1, 6));

TEST_P(PlannedSumsOfThreads, HaveTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<PlannedCase> all = layouts(GetParam(), seed);
  expect_all_well(true, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const PlannedCase& c : all) run_planned(c, "inproc", rendezvous, 2);
  });
}

TEST(PlannedSums, StayUntilAllHaveReleasedThem) {
  PlannedCase c{.ranks = 3, .lanes = 8, .sizes = {97, 40}, .seed = std::random_device{}()};
  for (bool root : {false, true}) {
    c.root = root;
    expect_all_well(
        true, 3, [&](int, Rendezvous& rendezvous) { run_planned(c, "inproc", rendezvous, 400); });
  }
}

TEST(PlannedSums, OfTwoLevelsStayUntilAllHaveReleasedThem) {
  for (int lanes : {8, 7}) {  // by hosts; all at once
    PlannedCase c{
        .ranks = 4, .lanes = lanes, .hosts = 2, .sizes = {97, 40}, .seed = std::random_device{}()};
    expect_all_well(
        true, 4, [&](int, Rendezvous& rendezvous) { run_planned(c, "inproc", rendezvous, 300); });
  }
}

TEST(PlannedSums, OfManyBlocksHaveTheBitsOfOneRank) {
  PlannedCase c{
      .ranks = 2, .lanes = 3, .hosts = 2, .shared = true, .sizes = {1'300'000, 700}, .seed = 11};
  expect_all_well(true, 2,
                  [&](int, Rendezvous& rendezvous) { run_planned(c, "inproc", rendezvous, 2); });
}

TEST(PlannedSums, BetweenTwoHostsOfTwoRanksSendTheGradientOnceEachWay) {
  for (int lanes : {4, 8, 16}) {
    const PlannedCase c{.ranks = 4, .lanes = lanes, .hosts = 2, .sizes = {100'000}};
    const ModelShape model = c.model();
    const LinkBytes bytes = link_bytes(c.plan(true), model);
    for (int a : {0, 1}) {
      EXPECT_EQ(bytes[a][a + 2] + bytes[1 - a][a + 2], bytes[a][a + 2])
          << "partners alone send: " << lanes;
      EXPECT_EQ(bytes[a + 2][a], bytes[a][a + 2]) << lanes;
    }
    EXPECT_EQ(bytes[0][2] + bytes[1][3], 4 * model.blocks[0].unit_size) << lanes;
  }
}

TEST(PlannedSums, NameTheParcelTheStepAndTheRankThatIsMissing) {
  for (int hosts : {1, 3}) {
    const PlannedCase c{.ranks = 3, .lanes = 3, .hosts = hosts, .sizes = {20'000}};
    expect_all_well(true, 3,
                    [&](int rank, Rendezvous& r) { expect_missing_rank(c, "inproc", rank, r); });
  }
}

}  // namespace
}  // namespace tutti
