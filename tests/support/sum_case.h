// A parcel's sum, made by hand: its transfers, what every rank puts in, and what must come out.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "plan/ir/transfers.h"
#include "support/lane_values.h"

namespace tutti::testing_support {

/// Data ranks [0, D) hold the units; where a further user of some parameter is away, ranks [D, 2D)
/// use it, too.
struct SumCase {
  uint64_t seed = 1;
  SumOptions options;
  /// where there is one round, owners make their slices in their first terms
  bool in_place = true;
  bool ordered = true;
  Return returned = Return::kNone;
  struct User {
    Range to;
    bool away = false;
  };
  struct Unit {
    int64_t size = 0;
    std::vector<Range> slices;  ///< by data rank
    std::vector<User> further;  ///< besides the unit's own gradient
    User user(size_t u) const { return u == 0 ? User{{0, size}, false} : further[u - 1]; }
    size_t users() const { return 1 + further.size(); }
  };
  std::vector<Unit> units;

  int data_ranks() const { return options.ranks; }
  int ranks() const {
    const auto away = [](const Unit& unit) {
      return std::any_of(unit.further.begin(), unit.further.end(),
                         [](const User& user) { return user.away; });
    };
    return std::any_of(units.begin(), units.end(), away) ? 2 * options.ranks : options.ranks;
  }
  bool made_in_place() const { return in_place && sum_rounds(options).size() == 1; }

  std::string text() const {
    std::string text = fmt::format(
        "seed {}: {} data ranks of {}, {} lanes x {}{}{}{}{}{}", seed, options.ranks, ranks(),
        options.batch.lanes, options.batch.micro_batches, options.owner ? " owner" : "",
        options.micro ? " micro" : "", in_place ? ", in place" : "",
        ordered ? "" : ", without an order", returned == Return::kNone ? "" : ", returned");
    for (const Unit& unit : units)
      text += fmt::format(", {} floats of {} users", unit.size, unit.users());
    return text;
  }

  /// Contributions are one after the other, partial by partial, unit by unit and user by user, in
  /// every rank that has them; no two ranks have them at the same places.
  int64_t offset(int rank, int partial, size_t unit, size_t user) const {
    constexpr int64_t kGap = 16;
    int64_t floats = kGap * rank, before = 0, all = 0;
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t k = 0; k < units[u].users(); ++k) {
        const int64_t size = units[u].user(k).to.size() + kGap;
        all += size;
        if (u < unit || (u == unit && k < user)) before += size;
      }
    return (floats + partial * all + before) * static_cast<int64_t>(sizeof(float));
  }
  int64_t arena_bytes() const {
    int partials = 0;
    for (const Round& round : sum_rounds(options))
      for (const Contribution& c : round.contributions)
        partials = std::max(partials, c.partial + 1);
    return offset(ranks(), partials, 0, 0);
  }
  int rank_of(const Contribution& c, const User& user) const {
    return c.data_rank + (user.away ? options.ranks : 0);
  }

  SumTransfer transfer(int round = 0) const {
    const std::vector<Round> rounds = sum_rounds(options);
    SumTransfer t;
    t.round = round;
    t.rounds = static_cast<int>(rounds.size());
    t.levels = stack_levels(rounds);
    t.sums = rounds[round].sums;
    t.ordered = ordered;
    t.returned = returned;
    for (int r = 0; r < ranks(); ++r) t.ranks.push_back(r);
    for (size_t u = 0; u < units.size(); ++u) {
      UnitSum& sum = t.units.emplace_back();
      sum.unit = static_cast<int>(u);
      for (int r = 0; r < ranks(); ++r)
        sum.slices.push_back(r < options.ranks ? units[u].slices[r] : Range{});
      for (size_t k = 0; k < units[u].users(); ++k) {
        const User user = units[u].user(k);
        SumSource& source = sum.sources.emplace_back(SumSource{user.to, {}});
        for (const Contribution& c : rounds[round].contributions)
          source.terms.push_back({rank_of(c, user), offset(rank_of(c, user), c.partial, u, k)});
      }
    }
    return t;
  }

  /// Copies all of a sum in place to every data rank's first terms. The only buffer is the whole
  /// arena.
  CopyTransfer copies() const {
    CopyTransfer t;
    t.gradients = true;
    for (int to = 0; to < options.ranks; ++to) {
      t.ranks.push_back(to);
      for (size_t u = 0; u < units.size(); ++u)
        for (int from = 0; from < options.ranks; ++from) {
          const Range slice = units[u].slices[from];
          const int64_t begin = slice.begin * 4;
          if (!slice.empty())
            t.copies.push_back({from, to, offset(from, 0, u, 0) + begin, 0,
                                offset(to, 0, u, 0) + begin, slice.size() * 4});
        }
    }
    return t;
  }

  uint64_t seed_of(size_t unit, size_t user) const { return seed + 1000 * user + 100'000 * unit; }
  static uint64_t turn(uint64_t step, int micro) {
    return step * 100 + static_cast<uint64_t>(micro);
  }
  /// What a lane has put in: all its micro-batches, or one.
  float lane_sum(uint64_t step, size_t unit, size_t user, int64_t lane, int micro,
                 int64_t i) const {
    const uint64_t of = seed_of(unit, user);
    if (options.micro) return lane_value(of, turn(step, micro), lane, i);
    float sum = lane_value(of, turn(step, 0), lane, i);
    for (int m = 1; m < options.batch.micro_batches; ++m)
      sum += lane_value(of, turn(step, m), lane, i);
    return sum;
  }
  float tree(uint64_t step, size_t unit, size_t user, int64_t first, int64_t n, int micro,
             int64_t i) const {
    if (n == 1) return lane_sum(step, unit, user, first, micro, i);
    const int64_t left = tree_left(n);
    return tree(step, unit, user, first, left, micro, i) +
           tree(step, unit, user, first + left, n - left, micro, i);
  }
  /// The job's sum of float i of a unit.
  WantedSum wanted(uint64_t step, size_t unit, int64_t i) const {
    WantedSum all;
    for (size_t u = 0; u < units[unit].users(); ++u) {
      if (!units[unit].user(u).to.contains(i)) continue;
      float sum = tree(step, unit, u, 0, options.batch.lanes, 0, i);
      for (int m = 1; options.micro && m < options.batch.micro_batches; ++m)
        sum += tree(step, unit, u, 0, options.batch.lanes, m, i);
      all.add(sum);
      for (int lane = 0; lane < options.batch.lanes; ++lane)
        for (int m = 0; m < options.batch.micro_batches; ++m)
          all.add_value(lane_value(seed_of(unit, u), turn(step, m), lane, i));
    }
    return all;
  }

  /// This rank's contributions of a round; what it does not contribute is NaN.
  void fill(int rank, uint64_t step, int round, std::span<float> arena) const {
    std::fill(arena.begin(), arena.end(), std::numeric_limits<float>::quiet_NaN());
    const int turns = options.owner ? (options.batch.lanes + options.ranks - 1) / options.ranks : 1;
    const std::vector<Round> rounds = sum_rounds(options);
    for (const Contribution& c : rounds[round].contributions)
      for (size_t u = 0; u < units.size(); ++u)
        for (size_t k = 0; k < units[u].users(); ++k) {
          const User user = units[u].user(k);
          if (rank != rank_of(c, user)) continue;
          float* at = arena.data() + offset(rank, c.partial, u, k) / 4;
          for (int64_t i = user.to.begin; i < user.to.end; ++i)
            *at++ = tree(step, u, k, c.lanes.begin, c.lanes.size(), round / turns, i);
        }
  }
};

/// Slices that follow each other over [0, size), each as long as chance has it; some are empty.
inline std::vector<Range> random_slices(std::mt19937_64& random, int64_t size, int count) {
  std::vector<int64_t> cuts{0, size};
  for (int s = 1; s < count; ++s)
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<Range> slices;
  for (int s = 0; s < count; ++s) slices.push_back({cuts[s], cuts[s + 1]});
  return slices;
}

/// The first rank makes all sums.
inline std::vector<Range> root_slices(int64_t size, int ranks) {
  std::vector<Range> slices(ranks, Range{size, size});
  slices[0] = {0, size};
  return slices;
}

/// One round of data parallelism: every rank has the lanes that the grid gives it.
inline SumCase plain_case(int ranks, int lanes, std::vector<int64_t> sizes, uint64_t seed) {
  SumCase c;
  c.seed = seed;
  c.options = {.batch = {.lanes = lanes, .micro_batches = 1}, .ranks = ranks};
  std::mt19937_64 random(seed);
  for (int64_t size : sizes) c.units.push_back({size, random_slices(random, size, ranks), {}});
  return c;
}

}  // namespace tutti::testing_support
