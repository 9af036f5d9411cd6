// Sums and copies of a mesh's plan over every transport: the bits of the job's tree, written out naively, however the
// rounds, slices and users of shared parameters fall.
#include "comm/pulls.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "support/reduction_case.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;

constexpr std::chrono::seconds kSoon{20};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A random unit's sum: data ranks [0, D) hold it; where a further user is away, data ranks [D, 2D) use it too.
struct SumCase {
  uint64_t seed;
  SumOptions options;
  int shards = 1;
  bool in_place = false;  // where there is one round
  int64_t size = 0;
  struct User {
    Range to;
    bool away;
  };
  std::vector<User> users;  // the first: the unit itself
  std::vector<Range> slices;
  int ranks = 0;

  explicit SumCase(uint64_t number, int most_ranks = 4, int64_t most_floats = 700) : seed(number) {
    std::mt19937_64 random(seed);
    const auto upto = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    options.ranks = static_cast<int>(1 + upto(most_ranks));
    options.batch.lanes = static_cast<int>(options.ranks + upto(9));
    options.batch.micro_batches = static_cast<int>(1 + upto(3));
    options.micro = upto(2) == 0;
    options.owner = upto(2) == 0 && (options.micro || options.batch.micro_batches == 1);
    do shards = static_cast<int>(1 + upto(options.ranks));
    while (options.ranks % shards != 0);
    in_place = upto(2) == 0;
    size = 1 + upto(most_floats);
    users.push_back({{0, size}, false});
    for (int64_t extra = upto(4); extra > 0; --extra) {
      const int64_t begin = upto(size);
      users.push_back({{begin, begin + 1 + upto(size - begin)}, upto(2) == 0});
    }
    ranks = options.ranks;
    for (const User& user : users) ranks = user.away ? 2 * options.ranks : ranks;
    std::vector<int64_t> cuts{0, size};
    for (int s = 1; s < shards; ++s) cuts.push_back(upto(size + 1));
    std::sort(cuts.begin(), cuts.end());
    for (int s = 0; s < shards; ++s) slices.push_back({cuts[s], cuts[s + 1]});
  }

  std::string text() const {
    return fmt::format("seed {}: {} data ranks of {}, {} lanes x {}{}{}, {} shards, {} floats, {} users{}", seed,
                       options.ranks, ranks, options.batch.lanes, options.batch.micro_batches,
                       options.owner ? " owner" : "", options.micro ? " micro" : "", shards, size, users.size(),
                       in_place ? ", in place" : "");
  }

  // Contributions lie one behind the other, partial by partial, user by user, in every rank that has them.
  int64_t offset(int rank, size_t user, int partial) const {
    int64_t floats = 16 * rank + partial * 16 * users.size();
    for (size_t u = 0; u < users.size(); ++u) floats += partial * users[u].to.size();
    for (size_t u = 0; u < user; ++u) floats += users[u].to.size() + 16;
    return floats * 4;
  }
  size_t arena_bytes() const { return offset(ranks, users.size(), options.batch.lanes); }

  SumTransfer transfer(int round) const {
    const std::vector<Round> rounds = sum_rounds(options);
    SumTransfer t;
    t.id = (1U << 22) + round;
    t.unit = 5;
    t.round = round;
    t.rounds = static_cast<int>(rounds.size());
    t.levels = stack_levels(rounds);
    t.name = fmt::format("reduce unit {} round {}", t.unit, round);
    t.sums = rounds[round].sums;
    for (int r = 0; r < ranks; ++r) {
      t.ranks.push_back(r);
      t.slices.push_back(r < options.ranks ? slices[r % shards] : Range{});
    }
    for (size_t u = 0; u < users.size(); ++u) {
      t.sources.push_back({users[u].to, {}});
      for (const Contribution& c : rounds[round].contributions) {
        const int rank = c.data_rank + (users[u].away ? options.ranks : 0);
        t.sources.back().terms.push_back({rank, offset(rank, u, c.partial)});
      }
    }
    return t;
  }

  float value(uint64_t step, size_t user, int64_t lane, int micro, int64_t i) const {
    return lane_value(seed + 1000 * user, step * 100 + micro, lane, i);
  }
  /// What lane `lane` has put in: all its micro-batches, or one.
  float lane_sum(uint64_t step, size_t user, int64_t lane, int micro, int64_t i) const {
    if (options.micro) return value(step, user, lane, micro, i);
    float sum = value(step, user, lane, 0, i);
    for (int m = 1; m < options.batch.micro_batches; ++m) sum += value(step, user, lane, m, i);
    return sum;
  }
  float tree(uint64_t step, size_t user, int64_t first, int64_t n, int micro, int64_t i) const {
    if (n == 1) return lane_sum(step, user, first, micro, i);
    const int64_t left = tree_left(n);
    return tree(step, user, first, left, micro, i) + tree(step, user, first + left, n - left, micro, i);
  }
  /// The job's sum of float i of the unit.
  float expected(uint64_t step, int64_t i) const {
    float all = 0;
    for (size_t u = 0; u < users.size(); ++u) {
      if (!users[u].to.contains(i)) continue;
      float sum = tree(step, u, 0, options.batch.lanes, 0, i);
      for (int m = 1; options.micro && m < options.batch.micro_batches; ++m) {
        sum += tree(step, u, 0, options.batch.lanes, m, i);
      }
      all = u == 0 ? sum : all + sum;
    }
    return all;
  }

  /// This rank's contributions of a round; what it does not contribute is NaN.
  void fill(int rank, uint64_t step, int round, std::span<float> arena) const {
    std::fill(arena.begin(), arena.end(), kNan);
    const int turns = options.owner ? (options.batch.lanes + options.ranks - 1) / options.ranks : 1;
    const std::vector<Round> rounds = sum_rounds(options);
    for (const Contribution& c : rounds[round].contributions) {
      for (size_t u = 0; u < users.size(); ++u) {
        if (rank != c.data_rank + (users[u].away ? options.ranks : 0)) continue;
        float* at = arena.data() + offset(rank, u, c.partial) / 4;
        for (int64_t i = users[u].to.begin; i < users[u].to.end; ++i) {
          *at++ = tree(step, u, c.lanes.begin, c.lanes.size(), round / turns, i);
        }
      }
    }
  }
};

/// Memory that transfers read: the window, or what stands for it.
struct Arena {
  std::vector<std::byte> own;
  std::span<std::byte> bytes;
  Arena(Transport& transport, size_t size) : bytes(transport.window()) {
    if (bytes.empty()) own.resize(size), bytes = own;
  }
  std::span<float> floats() { return {reinterpret_cast<float*>(bytes.data()), bytes.size() / 4}; }
};

/// Runs all rounds of `steps` steps and compares the slice. Contributions become NaN as soon as run() returns, the
/// stack is NaN at first.
void run_sums(const SumCase& c, TestRank& me, int steps) {
  SCOPED_TRACE(c.text() + fmt::format(", rank {} over {}", me.rank, me.transport.name()));
  Arena arena(me.transport, c.arena_bytes());
  const int rounds = static_cast<int>(sum_rounds(c.options).size());
  const Range slice = c.transfer(0).slices[me.rank];
  const bool in_place = rounds == 1 && c.in_place;
  std::vector<std::vector<float>> stack;
  std::vector<float*> levels;
  for (int l = 0; l < c.transfer(0).levels && !slice.empty(); ++l) {
    stack.emplace_back(level_floats(c.transfer(0), me.rank), kNan);
    levels.push_back(stack.back().data());
  }
  if (in_place && !slice.empty()) levels[0] = arena.floats().data() + c.offset(me.rank, 0, 0) / 4 + slice.begin;
  bool windows = true;
  for (int r = 0; r < me.size; ++r) windows = windows && (r == me.rank || !me.transport.window_of(r).empty());
  int64_t scratch_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    scratch_bytes = std::max(scratch_bytes, SumPull::scratch_bytes(c.transfer(round), me.rank, windows));
  }
  std::vector<std::byte> scratch(scratch_bytes);
  std::vector<std::unique_ptr<SumPull>> pulls;
  for (int round = 0; round < rounds; ++round) {
    pulls.push_back(std::make_unique<SumPull>(c.transfer(round), me.transport, arena.bytes, levels, scratch));
  }
  for (int step = 0; step < steps; ++step) {
    for (int round = 0; round < rounds; ++round) {
      c.fill(me.rank, step, round, arena.floats());
      pulls[round]->run(step, me.soon());
      int64_t wrong = 0;
      for (int64_t i = slice.begin; round + 1 == rounds && i < slice.end; ++i) {
        const float got = levels[0][i - slice.begin], want = c.expected(step, i);
        if (std::bit_cast<uint32_t>(got) != std::bit_cast<uint32_t>(want) && wrong++ == 0) {
          ADD_FAILURE() << "step " << step << " float " << i << ": " << got << " != " << want;
        }
      }
      std::fill(arena.floats().begin(), arena.floats().end(), kNan);
    }
  }
  for (int r = 0; r < me.size; ++r) {
    if (r != me.rank && !me.transport.window_of(r).empty()) EXPECT_EQ(me.transport.sent_bytes(r), 0U);
  }
}

class Pulls : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, Pulls, testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Pulls, SumTheJobsTree) {
  const uint64_t seed = std::random_device{}();
  for (uint64_t k = 0; k < 12; ++k) {
    const SumCase c(seed + k);
    SCOPED_TRACE(c.text());
    over(
        GetParam(), c.ranks, [&](TestRank& me) { run_sums(c, me, 3); }, c.arena_bytes());
  }
}

TEST_P(Pulls, SumManyBlocks) {
  SumCase c(17);
  c.options = {.batch = {.lanes = 3, .micro_batches = 1}, .ranks = 2};
  c.ranks = 2;
  c.shards = 2;
  c.size = 1'900'000;
  c.users = {{{0, c.size}, false}, {{600'000, 1'500'001}, false}};
  c.slices = {{0, 1'200'005}, {1'200'005, c.size}};
  c.in_place = true;
  over(
      GetParam(), c.ranks, [&](TestRank& me) { run_sums(c, me, 1); }, c.arena_bytes());
}

TEST_P(Pulls, SumInPlaceWhereTwoOwnTheSameSlice) {
  SumCase c(18);
  c.options = {.batch = {.lanes = 4, .micro_batches = 1}, .ranks = 4};
  c.ranks = 4;
  c.shards = 2;
  c.size = 20'000;
  c.users = {{{0, c.size}, false}};
  c.slices = {{0, 9'000}, {9'000, c.size}};
  c.in_place = true;
  over(
      GetParam(), c.ranks, [&](TestRank& me) { run_sums(c, me, 20); }, c.arena_bytes());
}

// Rank r holds slice r of `n` bytes; all but the last rank end with all of them, in reverse order: those of even ranks
// in one buffer, those of odd ranks in another.
CopyTransfer reversed(int ranks, int64_t n, bool updated) {
  CopyTransfer t{.id = (1U << 22) + updated, .name = "gather parameters of unit 9", .unit = 9, .updated = updated};
  for (int to = 0; to < ranks; ++to) {
    t.ranks.push_back(to);
    for (int from = 0; from < ranks && to + 1 < ranks; ++from) {
      t.copies.push_back({from, to, 8 * from, (ranks - 1 - from) * n, n, from % 2});
    }
  }
  return t;
}

TEST_P(Pulls, CopyWhatEachHolds) {
  constexpr int64_t kBytes = 3001;
  over(
      GetParam(), 4,
      [&](TestRank& me) {
        Arena arena(me.transport, 4096);
        std::vector<std::byte> even(4 * kBytes), odd(4 * kBytes);
        const bool takes = me.rank + 1 < me.size;
        std::vector<std::byte*> targets;
        if (takes) targets = {even.data(), odd.data()};
        CopyPull before(reversed(4, kBytes, false), me.transport, arena.bytes, targets);
        CopyPull after(reversed(4, kBytes, true), me.transport, arena.bytes, targets);
        uint32_t meeting = 0;
        for (int step = 0; step < 20; ++step) {
          for (int phase = 0; phase < 3; ++phase) {  // a copy may be made again
            const auto value = [&](int rank) { return static_cast<std::byte>(rank * 50 + step * 2 + (phase == 2)); };
            if (phase == 2) me.barrier(meeting++);
            if (phase != 1) std::fill_n(arena.bytes.data() + 8 * me.rank, kBytes, value(me.rank));
            std::fill(even.begin(), even.end(), std::byte{255});
            std::fill(odd.begin(), odd.end(), std::byte{255});
            (phase == 2 ? after : before).run(step, me.soon());
            for (int from = 0; from < me.size && takes; ++from) {
              const auto begin = (from % 2 == 0 ? even : odd).begin() + (3 - from) * kBytes;
              EXPECT_EQ(std::count(begin, begin + kBytes, value(from)), kBytes)
                  << "step " << step << " phase " << phase << " of rank " << from << " on rank " << me.rank;
            }
          }
          me.barrier(meeting++);
        }
      },
      4096);
}

TEST_P(Pulls, NameTheTransferTheStepAndTheRankThatIsMissing) {
  SumCase c(19);
  c.options = {.batch = {.lanes = 3, .micro_batches = 1}, .ranks = 3};
  c.ranks = c.shards = 3;
  c.size = 300;
  c.users = {{{0, c.size}, false}};
  c.slices = {{0, 100}, {100, 200}, {200, 300}};
  for (bool sum : {true, false}) {
    TransportOptions options = options_for(GetParam(), 3);
    options.window_bytes = c.arena_bytes();
    expect_all_well(GetParam().threads, 3, with_transport(options, [&](TestRank& me) {
                      if (me.rank == 2) return;
                      Arena arena(me.transport, c.arena_bytes());
                      std::vector<float> level(100);
                      std::vector<std::byte> whole(300), scratch(SumPull::scratch_bytes(c.transfer(0), me.rank, false));
                      const CopyTransfer copy = reversed(3, 100, false);
                      const std::string name = sum ? "reduce unit 5 round 0" : copy.name;
                      try {
                        const Deadline deadline = me.clock.after(std::chrono::milliseconds(200));
                        if (sum) {
                          SumPull(c.transfer(0), me.transport, arena.bytes, {level.data()}, scratch).run(7, deadline);
                        } else {
                          CopyPull(copy, me.transport, arena.bytes, {whole.data(), whole.data()}).run(7, deadline);
                        }
                        ADD_FAILURE() << name << " without rank 2";
                      } catch (const CommError& e) {
                        EXPECT_EQ(e.failure().operation, name) << e.what();
                        EXPECT_EQ(e.failure().peer, 2) << e.what();
                        EXPECT_EQ(e.failure().sequence, 7U);
                      }
                    }));
  }
}

TEST(PullsOfProcesses, NameTheTransferWhenARankIsKilled) {
  const CopyTransfer copy = reversed(4, 100, false);
  for (const char* kind : {"shm", "tcp"}) {
    const std::vector<int> statuses = run_forked(4, [&](int rank, Rendezvous& rendezvous) {
      SystemClock clock;
      const TransportOptions options{.kind = kind, .window_bytes = 4096};
      auto transport = make_transport(options, kTestEpoch, rendezvous, clock, nullptr, clock.after(kSoon));
      Arena arena(*transport, 4096);
      std::vector<std::byte> whole(400);
      CopyPull pull(copy, *transport, arena.bytes, {whole.data(), whole.data()});
      if (rank == 3) ::raise(SIGKILL);
      try {
        pull.run(7, clock.after(std::chrono::milliseconds(300)));
        ADD_FAILURE() << "copied from a rank that was killed";
      } catch (const CommError& e) {
        EXPECT_EQ(e.failure().operation, copy.name) << e.what();
        EXPECT_EQ(e.failure().sequence, 7U);
      }
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, SIGKILL})) << kind;
  }
}

}  // namespace
}  // namespace tutti
