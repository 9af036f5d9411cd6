// Reductions among processes over shared memory, and over shared memory inside hosts with messages between them.
#include <gtest/gtest.h>

#include <random>

#include "support/forked_ranks.h"
#include "support/reduction_case.h"

namespace tutti {
namespace {

using namespace testing_support;

class ReductionOverShm : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReductionOverShm, testing::Range(1, 6));

TEST_P(ReductionOverShm, HasTheBitsOfOneRankInEveryLayout) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const std::vector<ReductionCase> all = layouts(GetParam(), seed);
  expect_all_well(false, GetParam(), [&](int, Rendezvous& rendezvous) {
    for (const ReductionCase& c : all) run_case(c, "shm", rendezvous, 2);
  });
}

TEST(ReductionOverShm, HoldsPartialsUntilAllHaveReleasedThem) {
  ReductionCase c{.ranks = 3, .lanes = 8, .hosts = {0, 0, 0}, .result_size = 97, .seed = std::random_device{}()};
  SCOPED_TRACE(c.seed);
  expect_all_well(false, 3, [&](int, Rendezvous& rendezvous) { run_case(c, "shm", rendezvous, 500); });
}

TEST(ReductionOverShm, OfTwoHostsHoldsPartialsUntilAllHaveReleasedThem) {
  ReductionCase c{.ranks = 4, .lanes = 8, .hosts = {0, 0, 1, 1}, .result_size = 97, .seed = std::random_device{}()};
  SCOPED_TRACE(c.seed);
  expect_all_well(false, 4, [&](int, Rendezvous& rendezvous) { run_case(c, "shm", rendezvous, 150); });
}

TEST(ReductionOverShm, NamesTheRankThatIsMissing) {
  ReductionCase c{.ranks = 3, .lanes = 3, .hosts = {0, 0, 0}, .bucket = 4};
  expect_all_well(false, 3, [&](int rank, Rendezvous& rendezvous) { expect_missing_rank(c, "shm", rank, rendezvous); });
}

}  // namespace
}  // namespace tutti
