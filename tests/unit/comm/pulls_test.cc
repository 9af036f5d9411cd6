// Sums and copies over every transport: the bits of the job's tree, written out naively, however
// the units of a parcel, rounds, slices and users of shared parameters fall.
#include "comm/pulls.h"

#include <gtest/gtest.h>

#include <cstring>

#include "host_sums.h"

namespace tutti {
namespace {

using namespace testing_support;

constexpr std::chrono::seconds kSoon{20};

/// A parcel of one to three units, summed in any way.
SumCase random_case(uint64_t seed, int most_ranks = 4, int64_t most_floats = 700) {
  std::mt19937_64 random(seed);
  const auto upto = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  SumCase c;
  c.seed = seed;
  c.options.ranks = static_cast<int>(1 + upto(most_ranks));
  c.options.batch.lanes = static_cast<int>(c.options.ranks + upto(9));
  c.options.batch.micro_batches = static_cast<int>(1 + upto(3));
  c.options.micro = upto(2) == 0;
  c.options.owner = upto(2) == 0 && (c.options.micro || c.options.batch.micro_batches == 1);
  c.in_place = upto(2) == 0;
  int shards = 0;
  do shards = static_cast<int>(1 + upto(c.options.ranks));
  while (c.options.ranks % shards != 0);
  for (int64_t unit = upto(3); unit >= 0; --unit) {
    SumCase::Unit& u = c.units.emplace_back();
    u.size = 1 + upto(most_floats);
    for (int64_t further = upto(4); further > 0; --further) {
      const int64_t begin = upto(u.size);
      u.further.push_back({{begin, begin + 1 + upto(u.size - begin)}, upto(2) == 0});
    }
    const std::vector<Range> slices = random_slices(random, u.size, shards);
    for (int r = 0; r < c.options.ranks; ++r) u.slices.push_back(slices[r % shards]);
  }
  return c;
}

class Pulls : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, Pulls, testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Pulls, SumTheJobsTree) {
  const uint64_t seed = std::random_device{}();
  for (uint64_t k = 0; k < 12; ++k) run_sums(GetParam(), random_case(seed + k), 3);
}

TEST_P(Pulls, SumUnitsOfManySizesInOneParcel) {
  for (int ranks : {2, 3, 4})
    run_sums(GetParam(), plain_case(ranks, 7, {1, 5000, 3, 64, 800, 2}, 31), 3);
}

TEST_P(Pulls, SumManyBlocks) {
  SumCase c = plain_case(2, 3, {1'900'000, 300}, 17);
  c.units[0].further = {{{600'000, 1'500'001}, false}};
  c.units[0].slices = {{0, 1'200'005}, {1'200'005, 1'900'000}};
  run_sums(GetParam(), c, 1);
}

TEST_P(Pulls, SumInPlaceWhereTwoOwnTheSameSlice) {
  SumCase c = plain_case(4, 4, {20'000, 90}, 18);
  for (auto& unit : c.units) {
    const Range low{0, unit.size / 2}, high{unit.size / 2, unit.size};
    unit.slices = {low, high, low, high};
  }
  run_sums(GetParam(), c, 20);
}

TEST_P(Pulls, SumAllAtOneRank) {
  SumCase c = plain_case(4, 6, {2000, 77}, 19);
  for (auto& unit : c.units) unit.slices = root_slices(unit.size, 4);
  run_sums(GetParam(), c, 20);
}

TEST_P(Pulls, GoOnForManySteps) {
  run_sums(GetParam(), plain_case(3, 8, {97, 33}, std::random_device{}()), 150);
}

/// Where run() has returned, all ranks may read what the owners made in their windows: a Vote or
/// another meeting orders that only where some of it came by messages.
TEST(PullsOverWindows, LeaveAllSlicesReadableWhereTheirOwnersMadeThem) {
  const SumCase c = plain_case(3, 5, {3000, 200}, 23);
  for (const TransportCase& which : all_transports()) {
    if (which.kind == "tcp" || which.two_hosts) continue;
    over(
        which, 3,
        [&](TestRank& me) {
          Arena arena(me.transport, 0);
          const SumTransfer transfer = c.transfer();
          std::vector<std::vector<float*>> levels;
          for (size_t u = 0; u < c.units.size(); ++u)
            levels.push_back({arena.floats().data() + c.offset(me.rank, 0, u, 0) / 4 +
                              c.units[u].slices[me.rank].begin});
          const auto pull =
              make_sum_pull(transfer, sum_name(0), me.transport, arena.bytes, levels, {});
          for (uint32_t step = 0; step < 30; ++step) {
            c.fill(me.rank, step, 0, arena.floats());
            pull->run(step, me.soon());
            int64_t wrong = 0;
            for (size_t u = 0; u < c.units.size(); ++u)
              for (int owner = 0; owner < 3; ++owner) {
                const auto* sum = reinterpret_cast<const float*>(
                    me.transport.window_of(owner).data() + c.offset(owner, 0, u, 0));
                const Range slice = c.units[u].slices[owner];
                for (int64_t i = slice.begin; i < slice.end; ++i)
                  wrong += !c.wanted(step, u, i).has_bits(sum[i]);
              }
            EXPECT_EQ(wrong, 0) << "step " << step << " rank " << me.rank << " over " << which.name;
            me.barrier(step);
          }
        },
        static_cast<size_t>(c.arena_bytes()));
  }
}

TEST(SumScratch, IsForWhatArrivesByMessagesAndForSlicesOfTwoOwners) {
  const auto bytes = [](int64_t floats) { return align_up(floats, kAlign) * 4; };
  SumCase c = plain_case(3, 3, {1000, 90}, 24);
  c.units[0].slices = {{0, 500}, {500, 1000}, {}};
  c.units[1].slices = {{}, {0, 90}, {}};
  c.units[1].further = {{{80, 90}, false}};
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 0, true), 0);
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 0, false), 2 * bytes(500));
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 1, false),
            2 * bytes(500) + 2 * bytes(90) + 2 * bytes(10));
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 2, false), 0);
  c.units[0].slices = {{0, 600}, {600, 1000}, {0, 600}};
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 0, true), bytes(600));
  EXPECT_EQ(SumPull::scratch_bytes(c.transfer(), 1, true), 0);
}

// Rank r holds slice r of `n` bytes; all but the last rank end with all of them, in reverse order:
// those of even ranks in one buffer, those of odd ranks in another.
CopyTransfer reversed(int ranks, int64_t n, bool updated) {
  CopyTransfer t;
  t.updated = updated;
  for (int to = 0; to < ranks; ++to) {
    t.ranks.push_back(to);
    for (int from = 0; from < ranks && to + 1 < ranks; ++from)
      t.copies.push_back({from, to, 8 * from, from % 2, (ranks - 1 - from) * n, n});
  }
  return t;
}

TransferName copy_name(bool updated = false) {
  return {(1U << 22) + updated, 9, "gather parcel 9"};
}

TEST_P(Pulls, CopyWhatEachHolds) {
  constexpr int64_t kBytes = 3001;
  const CopyTransfer first = reversed(4, kBytes, false), second = reversed(4, kBytes, true);
  over(
      GetParam(), 4,
      [&](TestRank& me) {
        Arena arena(me.transport, 4096);
        std::vector<std::byte> even(4 * kBytes), odd(4 * kBytes);
        const bool takes = me.rank + 1 < me.size;
        const auto memory = [&](int buffer) { return buffer == 0 ? even.data() : odd.data(); };
        CopyPull before(first, copy_name(), me.transport, arena.bytes, memory);
        CopyPull after(second, copy_name(true), me.transport, arena.bytes, memory);
        uint32_t meeting = 0;
        for (int step = 0; step < 20; ++step) {
          for (int phase = 0; phase < 3; ++phase) {  // a copy may be made again
            const auto value = [&](int rank) {
              return static_cast<std::byte>(rank * 50 + step * 2 + (phase == 2));
            };
            if (phase == 2) me.barrier(meeting++);
            if (phase != 1) std::fill_n(arena.bytes.data() + 8 * me.rank, kBytes, value(me.rank));
            std::fill(even.begin(), even.end(), std::byte{255});
            std::fill(odd.begin(), odd.end(), std::byte{255});
            (phase == 2 ? after : before).run(step, me.soon());
            for (int from = 0; from < me.size && takes; ++from) {
              const auto begin = (from % 2 == 0 ? even : odd).begin() + (3 - from) * kBytes;
              EXPECT_EQ(std::count(begin, begin + kBytes, value(from)), kBytes)
                  << "step " << step << " phase " << phase << " of rank " << from << " on rank "
                  << me.rank;
            }
          }
          me.barrier(meeting++);
        }
      },
      4096);
}

TEST_P(Pulls, NameTheTransferTheStepAndTheRankThatIsMissing) {
  SumCase c = plain_case(3, 3, {300, 30}, 19);
  for (auto& unit : c.units) {
    const int64_t third = unit.size / 3;
    unit.slices = {{0, third}, {third, 2 * third}, {2 * third, unit.size}};
  }
  expect_missing_rank(GetParam(), c);
  const CopyTransfer copy = reversed(3, 100, false);
  TransportOptions options = options_for(GetParam(), 3);
  options.window_bytes = 4096;
  expect_all_well(GetParam().threads, 3, with_transport(options, [&](TestRank& me) {
                    if (me.rank == 2) return;
                    Arena arena(me.transport, 4096);
                    std::vector<std::byte> whole(300);
                    CopyPull pull(copy, copy_name(), me.transport, arena.bytes,
                                  [&](int) { return whole.data(); });
                    try {
                      pull.run(7, me.clock.after(std::chrono::milliseconds(200)));
                      ADD_FAILURE() << "copied without rank 2";
                    } catch (const CommError& e) {
                      EXPECT_EQ(e.failure().operation, copy_name().text) << e.what();
                      EXPECT_EQ(e.failure().peer, 2) << e.what();
                      EXPECT_EQ(e.failure().sequence, 7U);
                    }
                  }));
}

TEST(PullsOfProcesses, NameTheTransferWhenARankIsKilled) {
  const CopyTransfer copy = reversed(4, 100, false);
  for (const char* kind : {"shm", "tcp"}) {
    const std::vector<int> statuses = run_forked(4, [&](int rank, Rendezvous& rendezvous) {
      SystemClock clock;
      const TransportOptions options{.kind = kind, .window_bytes = 4096};
      auto transport =
          make_transport(options, kTestEpoch, rendezvous, clock, nullptr, clock.after(kSoon));
      Arena arena(*transport, 4096);
      std::vector<std::byte> whole(400);
      CopyPull pull(copy, copy_name(), *transport, arena.bytes, [&](int) { return whole.data(); });
      if (rank == 3) ::raise(SIGKILL);
      try {
        pull.run(7, clock.after(std::chrono::milliseconds(300)));
        ADD_FAILURE() << "copied from a rank that was killed";
      } catch (const CommError& e) {
        EXPECT_EQ(e.failure().operation, copy_name().text) << e.what();
        EXPECT_EQ(e.failure().sequence, 7U);
      }
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, SIGKILL})) << kind;
  }
}

}  // namespace
}  // namespace tutti
