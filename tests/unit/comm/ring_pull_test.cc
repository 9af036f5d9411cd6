// Sums without an order: all ranks end with the same bits, which are a rounding of the sum.
#include <gtest/gtest.h>

#include "host_sums.h"

namespace tutti {
namespace {

using namespace testing_support;

SumCase ring_case(int ranks, int lanes, std::vector<int64_t> sizes, uint64_t seed) {
  SumCase c = plain_case(ranks, lanes, std::move(sizes), seed);
  c.ordered = false;
  c.returned = Return::kBlocks;
  return c;
}

class RingPulls : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, RingPulls, testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(RingPulls, SumWithinRoundingInARingsBytes) {
  const uint64_t seed = std::random_device{}();
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int lanes = ranks; lanes <= 9; lanes += 2)
      run_sums(GetParam(), ring_case(ranks, lanes, {300, 1, 97}, seed + lanes), 3);
}

TEST_P(RingPulls, AddWhatFurtherUsersHave) {
  for (int ranks : {1, 3}) {
    SumCase c = ring_case(ranks, 5, {700, 90}, 51);
    c.units[0].further = {{{100, 650}, false}, {{300, 301}, false}};
    run_sums(GetParam(), c, 3);
  }
}

/// What one rank sums otherwise than the others would part their parameters for good.
TEST(RingPull, LeavesTheSameBitsOnAllRanks) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const SumCase c = ring_case(ranks, 7, {5000, 300}, 52);
    std::vector<std::vector<float>> sums(ranks);
    over(
        {"inproc", "inproc", true}, ranks,
        [&](TestRank& me) {
          Arena arena(me.transport, 0);
          const SumTransfer transfer = c.transfer();
          std::vector<std::byte> scratch(SumPull::scratch_bytes(transfer, me.rank, true));
          const auto pull =
              make_sum_pull(transfer, sum_name(0), me.transport, arena.bytes, {}, scratch);
          c.fill(me.rank, 0, 0, arena.floats());
          pull->run(0, me.soon());
          for (size_t u = 0; u < c.units.size(); ++u) {
            const auto whole =
                arena.floats().subspan(c.offset(me.rank, 0, u, 0) / 4, c.units[u].size);
            sums[me.rank].insert(sums[me.rank].end(), whole.begin(), whole.end());
          }
        },
        static_cast<size_t>(c.arena_bytes()));
    for (int r = 1; r < ranks; ++r) EXPECT_EQ(sums[r], sums[0]) << "rank " << r << " of " << ranks;
  }
}

TEST(RingPull, WantsScratchForTheLargestSlice) {
  SumCase c = ring_case(2, 2, {1000, 300}, 53);
  c.units[0].slices = {{0, 400}, {400, 1000}};
  for (int rank : {0, 1})
    EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), rank, true), align_up(600, kAlign) * 4);
}

TEST_P(RingPulls, NameTheTransferAndTheRankThatIsMissing) {
  expect_missing_rank(GetParam(), ring_case(3, 3, {300}, 54));
}

}  // namespace
}  // namespace tutti
