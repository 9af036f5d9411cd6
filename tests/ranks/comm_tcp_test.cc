// Reductions among processes over loopback sockets.
#include <gtest/gtest.h>

#include <random>

#include "support/forked_ranks.h"
#include "support/reduction_case.h"

namespace tutti {
namespace {

using namespace testing_support;

class ReductionOverTcp : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReductionOverTcp, testing::Range(1, 6));

TEST_P(ReductionOverTcp, HasTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<ReductionCase> all = layouts(GetParam(), seed);
  expect_all_well(false, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const ReductionCase& c : all) run_case(c, "tcp", rendezvous, 2);
  });
}

TEST(ReductionOverTcp, OfManyBlocksHasTheBitsOfOneRank) {
  ReductionCase c{.ranks = 2, .lanes = 3, .hosts = {0, 0}, .result_size = 700'000, .shared = true, .seed = 12};
  expect_all_well(false, 2, [&](int, Rendezvous& rendezvous) { run_case(c, "tcp", rendezvous, 2); });
}

TEST(ReductionOverTcp, GoesOnForManySteps) {
  ReductionCase c{.ranks = 3, .lanes = 8, .hosts = {0, 0, 0}, .result_size = 97, .seed = std::random_device{}()};
  SCOPED_TRACE(c.seed);
  expect_all_well(false, 3, [&](int, Rendezvous& rendezvous) { run_case(c, "tcp", rendezvous, 150); });
}

TEST(ReductionOverTcp, NamesTheRankThatIsMissing) {
  ReductionCase c{.ranks = 3, .lanes = 3, .hosts = {0, 0, 0}, .bucket = 4};
  expect_all_well(false, 3, [&](int rank, Rendezvous& rendezvous) { expect_missing_rank(c, "tcp", rank, rendezvous); });
}

}  // namespace
}  // namespace tutti
