// Sums of plans among processes over shared memory, and over shared memory inside hosts with
// messages between them.
#include <gtest/gtest.h>

#include <random>

#include "support/forked_ranks.h"
#include "support/planned_sums.h"

namespace tutti {
namespace {

using namespace testing_support;

class SumsOverShm : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SumsOverShm, testing::Range(1, 6));

TEST_P(SumsOverShm, HaveTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<PlannedCase> all = layouts(GetParam(), seed);
  expect_all_well(false, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const PlannedCase& c : all) run_planned(c, "shm", rendezvous, 2);
  });
}

TEST(SumsOverShm, StayUntilAllHaveReleasedThem) {
  const PlannedCase c{.ranks = 3, .lanes = 8, .sizes = {97, 40}, .seed = std::random_device{}()};
  expect_all_well(false, 3,
                  [&](int, Rendezvous& rendezvous) { run_planned(c, "shm", rendezvous, 500); });
}

TEST(SumsOverShm, OfTwoHostsStayUntilAllHaveReleasedThem) {
  const PlannedCase c{
      .ranks = 4, .lanes = 8, .hosts = 2, .sizes = {97, 40}, .seed = std::random_device{}()};
  expect_all_well(false, 4,
                  [&](int, Rendezvous& rendezvous) { run_planned(c, "shm", rendezvous, 150); });
}

TEST(SumsOverShm, NameTheRankThatIsMissing) {
  const PlannedCase c{.ranks = 3, .lanes = 3, .sizes = {20'000}};
  expect_all_well(false, 3, [&](int rank, Rendezvous& rendezvous) {
    expect_missing_rank(c, "shm", rank, rendezvous);
  });
}

}  // namespace
}  // namespace tutti
