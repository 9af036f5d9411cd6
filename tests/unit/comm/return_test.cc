// Sums whose finished blocks go back to all ranks at once: every rank ends with the bits of the
// tree, all of them, and no more bytes than these have travelled.
#include <gtest/gtest.h>

#include "host_sums.h"

namespace tutti {
namespace {

using namespace testing_support;

constexpr int64_t kBlock = 512 * 1024;  // tree_pull.cc's

SumCase returned_case(int ranks, int lanes, std::vector<int64_t> sizes, uint64_t seed = 41) {
  SumCase c = plain_case(ranks, lanes, std::move(sizes), seed);
  c.returned = Return::kBlocks;
  return c;
}

class Returns : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, Returns, testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Returns, BringEveryRankTheWholeSum) {
  const uint64_t seed = std::random_device{}();
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int lanes = ranks; lanes <= 9; lanes += 2)
      run_sums(GetParam(), returned_case(ranks, lanes, {300, 1, 97}, seed + lanes), 3);
}

TEST_P(Returns, AddWhatFurtherUsersHaveOnTheSameRanks) {
  SumCase c = returned_case(3, 5, {700, 90});
  c.units[0].further = {{{100, 650}, false}, {{300, 301}, false}};
  c.units[1].further = {{{0, 90}, false}};
  run_sums(GetParam(), c, 5);
}

TEST_P(Returns, GoOnForManySteps) {
  run_sums(GetParam(), returned_case(3, 8, {97, 33}, std::random_device{}()), 150);
}

TEST_P(Returns, ComeFromOneRankThatMakesAll) {
  SumCase c = returned_case(4, 6, {2000, 77});
  for (auto& unit : c.units) unit.slices = root_slices(unit.size, 4);
  run_sums(GetParam(), c, 20);
}

TEST_P(Returns, ComeFromWhereTheSlicesWereMade) {
  SumCase c = returned_case(3, 5, {1000, 64});
  c.in_place = false;
  run_sums(GetParam(), c, 5);
}

TEST_P(Returns, NameTheTransferTheStepAndTheRankThatIsMissing) {
  expect_missing_rank(GetParam(), returned_case(3, 3, {300}));
}

/// Slices of many blocks, of one, and of less; the owners' numbers of blocks differ.
TEST(ReturnedBlocks, HaveTheBitsOfTheTree) {
  for (const TransportCase& which : all_transports()) {
    if (which.name != "tcp_threads" && which.name != "tcp_processes" &&
        which.name != "mixed_threads")
      continue;
    SumCase c = returned_case(3, 4, {5 * kBlock / 2, 1000, kBlock + 1});
    c.units[0].slices = {{0, 2 * kBlock + 7},
                         {2 * kBlock + 7, 5 * kBlock / 2 - 1},
                         {5 * kBlock / 2 - 1, 5 * kBlock / 2}};
    c.units[0].further = {{{kBlock - 3, kBlock + 100'000}, false}};
    c.units[2].slices = {{0, 0}, {0, kBlock + 1}, {kBlock + 1, kBlock + 1}};
    run_sums(which, c, 2);
  }
}

TEST(ReturnedBlocks, OfOneRankThatMakesAllHaveTheBitsOfTheTree) {
  SumCase c = returned_case(2, 3, {3 * kBlock + 5, 10});
  for (auto& unit : c.units) unit.slices = root_slices(unit.size, 2);
  run_sums({"tcp_threads", "tcp", true}, c, 2);
}

/// Every rank has one term, as in data parallelism on as many ranks as lanes.
TEST(ReturnedBlocks, AreNoMoreBytesThanARings) {
  SumCase c = returned_case(4, 4, {4096});
  c.units[0].slices = {{0, 1024}, {1024, 2048}, {2048, 3072}, {3072, 4096}};
  over({"tcp_threads", "tcp", true}, 4, [&](TestRank& me) {
    HostSums sums(c, me);
    sums.run(0);
    uint64_t sent = 0;
    for (int r = 0; r < 4; ++r) sent += r == me.rank ? 0 : me.transport.sent_bytes(r);
    EXPECT_EQ(sent, 2U * 4096 * 4 * 3 / 4);
  });
}

}  // namespace
}  // namespace tutti
