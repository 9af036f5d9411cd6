// Rounds and their additions. Whatever the rounds are, the additions of a step are those of the
// job's tree: a round adds what its lanes complete, and a stack keeps subtrees whose neighbours are
// not there yet, as a binary counter keeps its ones.
#include "grid/mesh.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tutti {

namespace {

/// The additions over terms (each a range of lanes, in order) that finish the subtree they cover,
/// as numbers of terms.
std::vector<std::pair<int, int>> order_over(const std::vector<Range>& parts) {
  std::vector<std::pair<int, int>> order;
  const int64_t begin = parts.front().begin;
  std::vector<Range> moved;  // a subtree has the shape of the tree over as many leaves
  for (const Range& part : parts) moved.push_back({part.begin - begin, part.end - begin});
  const auto index = [&](int64_t at) {
    for (size_t i = 0; i < moved.size(); ++i)
      if (moved[i].begin == at) return static_cast<int>(i);
    TUTTI_CHECK(false, "no part begins at lane {}", at);
  };
  for (const TreeSum& sum : tree_sums(moved, moved.back().end))
    order.emplace_back(index(sum.left.begin), index(sum.right.begin));
  return order;
}

/// The additions of a round: they take the stack over lanes [0, done) to the one over these and the
/// lanes of the contributions. Levels are counted from `base`.
std::vector<LevelSum> merge_round(int64_t done, const std::vector<Contribution>& contributions,
                                  int64_t lanes, int base) {
  // The stack's levels are the maximal subtrees of the lanes that are done.
  const std::vector<Range> before = done > 0 ? subtrees({0, done}, lanes) : std::vector<Range>{};
  const int64_t now = contributions.empty() ? done : contributions.back().lanes.end;
  const std::vector<Range> after = subtrees({0, now}, lanes);

  // A level that stays as it is needs no addition; every other one is made of old levels and
  // contributions that it contains, in lane order.
  std::vector<LevelSum> sums;
  for (size_t level = 0; level < after.size(); ++level) {
    if (level < before.size() && before[level] == after[level]) continue;
    LevelSum sum{base + static_cast<int>(level), {}, {}};
    std::vector<Range> parts;
    for (size_t b = 0; b < before.size(); ++b)
      if (after[level].contains(before[b].begin)) {
        sum.terms.push_back(-1 - (base + static_cast<int>(b)));
        parts.push_back(before[b]);
      }

    for (size_t c = 0; c < contributions.size(); ++c)
      if (after[level].contains(contributions[c].lanes.begin)) {
        sum.terms.push_back(static_cast<int>(c));
        parts.push_back(contributions[c].lanes);
      }

    sum.order = order_over(parts);
    sums.push_back(std::move(sum));
  }
  return sums;
}

/// Makes the last addition of a micro-batch's tree go on to the sum of the micro-batches before it,
/// which level 0 holds: that becomes term 0.
void add_to_first(LevelSum& sum) {
  for (auto& [into, from] : sum.order) ++into, ++from;
  sum.order.emplace_back(0, 1);
  sum.terms.insert(sum.terms.begin(), -1);
  sum.level = 0;
}

/// Adds a data rank's contributions to a round after which it has all its lanes.
void add_contributions(const SumOptions& options, int data_rank, Round& round) {
  int partial = 0;
  for (const Range& own :
       subtrees(lanes_of(data_rank, options.ranks, options.batch.lanes), options.batch.lanes))
    round.contributions.push_back({data_rank, own, partial++});
}

/// The round in which all parts are added up to one.
Round only_round(std::vector<Contribution> contributions) {
  LevelSum sum;
  std::vector<Range> parts;
  for (const Contribution& c : contributions) {
    sum.terms.push_back(static_cast<int>(parts.size()));
    parts.push_back(c.lanes);
  }
  sum.order = order_over(parts);
  return {std::move(contributions), {std::move(sum)}};
}

}  // namespace

Mesh mesh_of(const LayoutConfig& layout) {
  Mesh mesh;
  mesh.tensor = static_cast<int>(layout.tensor);
  mesh.pipeline = static_cast<int>(layout.pipeline);
  mesh.data = static_cast<int>(layout.ranks) / (mesh.tensor * mesh.pipeline);

  // layout.shards = 0 stands for all data ranks; without ZeRO nothing is sliced.
  mesh.shards = layout.zero == 0     ? 1
                : layout.shards == 0 ? mesh.data
                                     : static_cast<int>(layout.shards);
  return mesh;
}

std::vector<int> lanes_of(const SumOptions& options, int data_rank) {
  std::vector<int> lanes;
  if (options.owner) {
    for (int lane = data_rank; lane < options.batch.lanes; lane += options.ranks)
      lanes.push_back(lane);
  } else {
    const Range range = lanes_of(data_rank, options.ranks, options.batch.lanes);
    for (int64_t lane = range.begin; lane < range.end; ++lane)
      lanes.push_back(static_cast<int>(lane));
  }
  return lanes;
}

std::vector<std::vector<MicroBatch>> rounds_of(const SumOptions& options, int data_rank) {
  const std::vector<int> lanes = lanes_of(options, data_rank);
  const int micros = options.batch.micro_batches;
  std::vector<std::vector<MicroBatch>> rounds;

  // One round: lanes one after the other, each with all its micro-batches.
  if (!options.owner && !options.micro) {
    rounds.emplace_back();
    for (int lane : lanes)
      for (int micro = 0; micro < micros; ++micro) rounds[0].push_back({lane, micro});
    return rounds;
  }

  // Several rounds: for each micro-batch, all lanes of the rank at once or, with fold = "owner",
  // one lane per turn. The last turn may have too few lanes for all ranks.
  const int turns = options.owner ? (options.batch.lanes + options.ranks - 1) / options.ranks : 1;
  for (int micro = 0; micro < micros; ++micro)
    for (int turn = 0; turn < turns; ++turn) {
      rounds.emplace_back();
      if (!options.owner) {
        for (int lane : lanes) rounds.back().push_back({lane, micro});
      } else if (turn < static_cast<int>(lanes.size())) {
        rounds.back().push_back({lanes[turn], micro});
      }
    }
  return rounds;
}

std::vector<std::vector<MicroBatch>> rounds_in_step(const SumOptions& options, int data_rank) {
  auto rounds = rounds_of(options, data_rank);
  const auto longest = rounds_of(options, 0);  // no rank has more lanes than the first
  for (size_t r = 0; r < rounds.size(); ++r)
    rounds[r].insert(rounds[r].begin(), longest[r].size() - rounds[r].size(), MicroBatch{-1, -1});
  return rounds;
}

std::vector<MicroBatch> sequence_of(const SumOptions& options, int data_rank) {
  std::vector<MicroBatch> all;
  for (const auto& round : rounds_in_step(options, data_rank))
    all.insert(all.end(), round.begin(), round.end());
  return all;
}

bool passes_through(const SumOptions& options) {
  return options.owner || (options.batch.lanes <= options.ranks &&
                           (options.batch.micro_batches == 1 || options.micro));
}

std::vector<Round> sum_rounds(const SumOptions& options) {
  const int64_t lanes = options.batch.lanes;
  std::vector<Round> rounds;
  const int steps = options.micro ? options.batch.micro_batches : 1;
  const int turns = options.owner ? (options.batch.lanes + options.ranks - 1) / options.ranks : 1;
  TUTTI_CHECK(!options.owner || options.micro || options.batch.micro_batches == 1,
              "a lane is more than one round");

  // Contributions in lane order. With fold = "owner" a turn adds the next lanes, one per rank;
  // otherwise all lanes come at once.
  for (int step = 0; step < steps; ++step)
    for (int turn = 0; turn < turns; ++turn) {
      Round round;
      const int64_t done = int64_t{turn} * options.ranks;
      for (int d = 0; d < options.ranks; ++d) {
        if (!options.owner) {
          add_contributions(options, d, round);
        } else if (done + d < lanes) {
          round.contributions.push_back({d, {done + d, done + d + 1}, 0});
        }
      }

      // From the second micro-batch on, level 0 holds the sum of those before, so that this one's
      // tree is built in the levels above. Its last round adds it to level 0.
      const int base = step > 0 ? 1 : 0;
      round.sums = merge_round(options.owner ? done : 0, round.contributions, lanes, base);
      if (base == 1 && turn + 1 == turns) add_to_first(round.sums.front());
      rounds.push_back(std::move(round));
    }
  return rounds;
}

std::vector<Range> subtrees_of_host(const SumOptions& options, int together, int host) {
  const int64_t lanes = options.batch.lanes;
  const int first = host * together, last = first + together - 1;
  return subtrees(
      {lanes_of(first, options.ranks, lanes).begin, lanes_of(last, options.ranks, lanes).end},
      lanes);
}

Round round_inside(const SumOptions& options, int together, int host) {
  Round round;
  for (int d = host * together; d < (host + 1) * together; ++d)
    add_contributions(options, d, round);

  // Each subtree of the host is a level, made of the partials that it contains.
  for (const Range& tree : subtrees_of_host(options, together, host)) {
    LevelSum sum{static_cast<int>(round.sums.size()), {}, {}};
    std::vector<Range> parts;
    for (size_t c = 0; c < round.contributions.size(); ++c) {
      const Range lanes = round.contributions[c].lanes;
      if (!tree.contains(lanes.begin)) continue;
      sum.terms.push_back(static_cast<int>(c));
      parts.push_back(lanes);
    }
    sum.order = order_over(parts);
    round.sums.push_back(std::move(sum));
  }
  return round;
}

Round round_between(const SumOptions& options, int together, int position) {
  std::vector<Contribution> parts;
  for (int host = 0; host < options.ranks / together; ++host) {
    // A host's sums are its contributions, brought by the rank at this position.
    int partial = 0;
    for (const Range& tree : subtrees_of_host(options, together, host))
      parts.push_back({host * together + position, tree, partial++});
  }
  return only_round(std::move(parts));
}

int stack_levels(const std::vector<Round>& rounds) {
  int levels = 1;
  for (const Round& round : rounds)
    for (const LevelSum& sum : round.sums) levels = std::max(levels, sum.level + 1);
  return levels;
}

int64_t arriving_parts(int columns, int ranks) {
  int64_t most = 0;

  // Each other rank adds up its own columns first, so it sends one partial per maximal subtree of
  // them, for each column of the member.
  for (int member = 0; member < ranks; ++member) {
    size_t partials = 0;
    for (int other = 0; other < ranks; ++other)
      if (other != member) partials += subtrees(lanes_of(other, ranks, columns), columns).size();
    most = std::max(most, static_cast<int64_t>(partials) * lanes_of(member, ranks, columns).size());
  }
  return most;
}

}  // namespace tutti
