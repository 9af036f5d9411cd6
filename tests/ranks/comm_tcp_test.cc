// Sums of plans among processes over loopback sockets.
#include <gtest/gtest.h>

#include <random>

#include "support/forked_ranks.h"
#include "support/planned_sums.h"

namespace tutti {
namespace {

using namespace testing_support;

class SumsOverTcp : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SumsOverTcp, testing::Range(1, 6));

TEST_P(SumsOverTcp, HaveTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<PlannedCase> all = layouts(GetParam(), seed);
  expect_all_well(false, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const PlannedCase& c : all) run_planned(c, "tcp", rendezvous, 2);
  });
}

TEST(SumsOverTcp, OfManyBlocksHaveTheBitsOfOneRank) {
  const PlannedCase c{
      .ranks = 2, .lanes = 3, .shared = true, .sizes = {1'300'000, 700}, .seed = 12};
  expect_all_well(false, 2,
                  [&](int, Rendezvous& rendezvous) { run_planned(c, "tcp", rendezvous, 2); });
}

TEST(SumsOverTcp, GoOnForManySteps) {
  const PlannedCase c{.ranks = 3, .lanes = 8, .sizes = {97, 40}, .seed = std::random_device{}()};
  expect_all_well(false, 3,
                  [&](int, Rendezvous& rendezvous) { run_planned(c, "tcp", rendezvous, 150); });
}

TEST(SumsOverTcp, NameTheRankThatIsMissing) {
  const PlannedCase c{.ranks = 3, .lanes = 3, .sizes = {20'000}};
  expect_all_well(false, 3, [&](int rank, Rendezvous& rendezvous) {
    expect_missing_rank(c, "tcp", rank, rendezvous);
  });
}

}  // namespace
}  // namespace tutti
