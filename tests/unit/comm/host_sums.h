// One rank of a SumCase over a transport: its memory and pulls, and what it must find when they
// have run.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/pulls.h"
#include "support/sum_case.h"
#include "support/transports.h"

namespace tutti::testing_support {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr int kParcel = 5;

/// Memory that transfers read: the window, or what stands for it.
struct Arena {
  std::vector<std::byte> own;
  std::span<std::byte> bytes;
  Arena(Transport& transport, size_t size) : bytes(transport.window()) {
    if (bytes.empty()) own.resize(size), bytes = own;
  }
  std::span<float> floats() { return {reinterpret_cast<float*>(bytes.data()), bytes.size() / 4}; }
};

inline TransferName sum_name(int round) {
  return {(1U << 22) + static_cast<uint32_t>(round), kParcel,
          fmt::format("reduce parcel {} round {}", kParcel, round)};
}

class HostSums {
 public:
  HostSums(const SumCase& c, TestRank& me)
      : case_(c), me_(me), arena_(me.transport, static_cast<size_t>(c.arena_bytes())) {
    const int rounds = static_cast<int>(sum_rounds(c.options).size());
    for (int round = 0; round < rounds; ++round) transfers_.push_back(c.transfer(round));
    make_stacks();
    bool windows = true;
    for (int r = 0; r < me.size; ++r) windows = windows && reads(r);
    int64_t scratch = 0;
    for (const SumTransfer& t : transfers_)
      scratch = std::max(scratch, SumPull::scratch_bytes(t, me.rank, windows));
    scratch_.resize(static_cast<size_t>(scratch));
    for (int round = 0; round < rounds; ++round)
      pulls_.push_back(make_sum_pull(transfers_[round], sum_name(round), me.transport, arena_.bytes,
                                     levels_, scratch_));
    for (int r = 0; r < me.size; ++r)
      sent_before_.push_back(r == me.rank ? 0 : me.transport.sent_bytes(r));
  }

  /// All rounds of a step. Contributions become NaN as soon as their round is over: what the others
  /// still want of them would show.
  void run(uint64_t step) {
    SCOPED_TRACE(case_.text() +
                 fmt::format(", rank {} over {}, step {}", me_.rank, me_.transport.name(), step));
    for (size_t round = 0; round < pulls_.size(); ++round) {
      case_.fill(me_.rank, step, static_cast<int>(round), arena_.floats());
      pulls_[round]->run(step, me_.soon());
      if (round + 1 == pulls_.size()) expect_sums(step);
      std::fill(arena_.floats().begin(), arena_.floats().end(), kNan);
    }
    ++steps_;
  }

  /// What went by messages since the start is what the transfers say.
  void expect_sent() const {
    for (int to = 0; to < me_.size; ++to) {
      if (to == me_.rank) continue;
      int64_t bytes = 0;
      for (const SumTransfer& t : transfers_)
        bytes += case_.ordered ? tree_bytes(t, to) : ring_bytes(t, to);
      EXPECT_EQ(me_.transport.sent_bytes(to) - sent_before_[to],
                static_cast<uint64_t>(steps_ * bytes))
          << case_.text() << ", from " << me_.rank << " to " << to << " over "
          << me_.transport.name();
    }
  }

  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.size()); }
  /// The whole sum of a unit where it is returned: this rank's first term.
  std::span<const float> whole(size_t unit) {
    return arena_.floats().subspan(case_.offset(me_.rank, 0, unit, 0) / 4, case_.units[unit].size);
  }

 private:
  bool reads(int rank) const { return rank == me_.rank || !me_.transport.window_of(rank).empty(); }

  void make_stacks() {
    const SumTransfer& t = transfers_[0];
    for (size_t u = 0; u < t.units.size(); ++u) {
      const Range slice = t.units[u].slices[me_.rank];
      auto& levels = levels_.emplace_back();
      if (slice.empty()) continue;
      if (case_.made_in_place()) {
        levels.push_back(arena_.floats().data() + case_.offset(me_.rank, 0, u, 0) / 4 +
                         slice.begin);
        continue;
      }
      for (int l = 0; l < t.levels; ++l) {
        stacks_.emplace_back(level_floats(t, t.units[u], me_.rank), kNan);
        levels.push_back(stacks_.back().data());
      }
    }
  }

  void expect_sums(uint64_t step) {
    for (size_t u = 0; u < case_.units.size(); ++u) {
      const Range slice = transfers_[0].units[u].slices[me_.rank];
      const bool all =
          (case_.returned == Return::kBlocks || !case_.ordered) && me_.rank < case_.data_ranks();
      if (case_.ordered && !slice.empty()) expect_range(step, u, slice, levels_[u][0]);
      if (!all) continue;
      // what others returned; its own is where it was made
      if (case_.ordered && !case_.made_in_place()) {
        expect_range(step, u, {0, slice.begin}, whole(u).data());
        expect_range(step, u, {slice.end, case_.units[u].size}, whole(u).data() + slice.end);
      } else {
        expect_range(step, u, {0, case_.units[u].size}, whole(u).data());
      }
    }
  }

  void expect_range(uint64_t step, size_t unit, Range range, const float* got) const {
    int64_t wrong = 0;
    for (int64_t i = range.begin; i < range.end; ++i, ++got) {
      const WantedSum want = case_.wanted(step, unit, i);
      const bool good = case_.ordered ? want.has_bits(*got) : want.is_close(*got);
      if (!good && wrong++ == 0)
        ADD_FAILURE() << "unit " << unit << " float " << i << ": " << *got << " != " << want.tree;
    }
    EXPECT_EQ(wrong, 0);
  }

  int64_t tree_bytes(const SumTransfer& t, int to) const {
    int64_t floats = 0;
    for (const UnitSum& unit : t.units) {
      for (const SumSource& source : unit.sources)
        for (const SumSource::Term& term : source.terms)
          if (term.rank == me_.rank && !reads(to))
            floats += overlap(unit.slices[to], source.to).size();
      if (t.returned == Return::kBlocks) floats += unit.slices[me_.rank].size();
    }
    return floats * 4;
  }
  /// All slices but mine, then all but my neighbour's.
  int64_t ring_bytes(const SumTransfer& t, int to) const {
    int64_t floats = 0;
    for (const UnitSum& unit : t.units)
      floats +=
          2 * unit.sources[0].to.size() - unit.slices[me_.rank].size() - unit.slices[to].size();
    return to == (me_.rank + 1) % me_.size ? floats * 4 : 0;
  }

  const SumCase& case_;
  TestRank& me_;
  Arena arena_;
  std::vector<SumTransfer> transfers_;
  std::vector<std::vector<float>> stacks_;
  std::vector<std::vector<float*>> levels_;
  std::vector<std::byte> scratch_;
  std::vector<std::unique_ptr<SumPull>> pulls_;
  std::vector<uint64_t> sent_before_;
  int64_t steps_ = 0;
};

/// Runs `steps` steps of a case on all its ranks and counts the bytes.
inline void run_sums(const TransportCase& which, const SumCase& c, int steps) {
  SCOPED_TRACE(c.text());
  const auto body = [&](TestRank& me) {
    HostSums sums(c, me);
    for (int step = 0; step < steps; ++step) sums.run(step);
    sums.expect_sent();
  };
  over(which, c.ranks(), body, static_cast<size_t>(c.arena_bytes()));
}

/// The last of three ranks never comes: the others give up at their deadline, naming it. (In a ring
/// rank 1 may lose rank 0 instead, which waits for it.)
inline void expect_missing_rank(const TransportCase& which, const SumCase& c) {
  TransportOptions options = options_for(which, 3);
  options.window_bytes = static_cast<size_t>(c.arena_bytes());
  expect_all_well(
      which.threads, 3, with_transport(options, [&](TestRank& me) {
        if (me.rank == 2) return;
        Arena arena(me.transport, static_cast<size_t>(c.arena_bytes()));
        const SumTransfer transfer = c.transfer();
        std::vector<std::vector<float*>> levels;
        std::vector<std::vector<float>> stacks;
        for (const UnitSum& unit : transfer.units) {
          stacks.emplace_back(unit.slices[me.rank].size());
          levels.push_back({stacks.back().data()});
        }
        std::vector<std::byte> scratch(SumPull::scratch_bytes(transfer, me.rank, false));
        const auto pull =
            make_sum_pull(transfer, sum_name(0), me.transport, arena.bytes, levels, scratch);
        try {
          pull->run(7, me.clock.after(std::chrono::milliseconds(200)));
          ADD_FAILURE() << "summed without rank 2";
        } catch (const CommError& e) {
          EXPECT_EQ(e.failure().operation, sum_name(0).text) << e.what();
          if (c.ordered || me.rank == 0) EXPECT_EQ(e.failure().peer, 2) << e.what();
          EXPECT_EQ(e.failure().sequence, 7U);
        }
      }));
}

}  // namespace tutti::testing_support
