// The end of a step: Norm, Vote and Update of UnitSymbols, and what must hold when all is done.
#include <fmt/format.h>

#include <algorithm>

#include "plan/check/units.h"

namespace tutti {

namespace {

bool listed(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

void UnitSymbols::norm(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.reads.size() != 1 || i.writes.size() != 1) return faults_.add(place, "reads one gradient and writes one sum");
  if (!is_home(place.rank, i.block)) return faults_.add(place, "its unit is not this rank's");
  const auto& slices = transfers_.places().slices[i.block];
  const size_t slice = options_.mesh.at(place.rank).data % slices.size();
  total_over(place, i.reads[0], i.block, slices[slice]);
  ++units_[i.block].norms[slice];
  commits_[place.rank].before.push_back(place);
}

void UnitSymbols::guard(Place place, int b, bool word) {
  const Commit& commit = commits_[place.rank];
  const Op op = at(plan_, place).op;
  const auto theirs = [&](int buffer, Op maker) { return b == buffer && (op != maker || !word); };
  const bool squares =
      std::any_of(commit.squares.begin(), commit.squares.end(), [&](int buffer) { return theirs(buffer, Op::kNorm); });
  if (theirs(commit.losses, Op::kForward) || squares || theirs(commit.verdict, Op::kVote)) {
    faults_.add(place, fmt::format("writes '{}', which is not for it", buffer(place.rank, b).name));
  }
  const bool maker = word && (op == Op::kForward || op == Op::kNorm || op == Op::kVote);
  if (maker && b != (op == Op::kForward ? commit.losses
                     : op == Op::kNorm  ? commit.squares[place.queue]
                                        : commit.verdict)) {
    faults_.add(place, fmt::format("writes '{}', others of its kind elsewhere", buffer(place.rank, b).name));
  }
}

void UnitSymbols::mark_loss(Place place) {
  const Instruction& i = at(plan_, place);
  const BlockShape& block = model_.blocks[i.block];
  const bool last = block.layer + 1 == model_.layers() && i.segment + 1 == static_cast<int>(block.segments.size());
  if (i.writes.size() != (last && !i.again ? 1 : 0)) faults_.add(place, "the loss has one place, others have none");
  if (last && !i.again) commits_[place.rank].before.push_back(place);
}

void UnitSymbols::vote(Place place) {
  const Instruction& i = at(plan_, place);
  Commit& commit = commits_[place.rank];
  std::vector<int> needed = commit.squares;
  needed.push_back(commit.losses);
  for (int b : needed) {
    if (b >= 0 && !listed(i.reads, b))
      faults_.add(place, fmt::format("does not read '{}'", buffer(place.rank, b).name));
  }
  if (i.writes.size() != 1) faults_.add(place, "writes one verdict");
  commit.votes.push_back(place);
}

void UnitSymbols::update(Place place) {
  const Instruction& i = at(plan_, place);
  const Commit& commit = commits_[place.rank];
  if (commit.votes.size() != 1 || !ordering_.before(commit.votes[0], place))
    return faults_.add(place, "does not follow the vote");
  if (!is_home(place.rank, i.block)) return faults_.add(place, "its unit is not this rank's");
  const Range range = updated_range(place.rank, i.block);
  ++units_[i.block].updates[options_.mesh.at(place.rank).data];
  const auto is = [&](size_t k, BufferKind kind) { return buffer(place.rank, i.reads[k]).kind == kind; };
  if (i.reads.size() != 4 || std::vector<int>{i.reads[0]} != at(plan_, commit.votes[0]).writes ||
      !is(1, BufferKind::kGradient) || !is(2, BufferKind::kParameter) || !is(3, BufferKind::kMoment))
    return faults_.add(place, "reads the verdict, a gradient, parameters and moments, in this order");
  const int gradient = i.reads[1], parameter = i.reads[2], moment = i.reads[3];
  if (i.writes != std::vector<int>{parameter, moment})
    return faults_.add(place, "writes the parameters and moments that it reads");
  total_over(place, gradient, i.block, range);
  if (!version_over(place.rank, parameter, i.block, BufferKind::kParameter, range, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's parameters", buffer(place.rank, parameter).name));
  }
  if (!version_over(place.rank, moment, i.block, BufferKind::kMoment, {0, 1}, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's moments", buffer(place.rank, moment).name));
  }
  const int64_t bytes = range.size() * static_cast<int64_t>(sizeof(float)) * options_.optimizer_slots;
  if (buffer(place.rank, moment).bytes < bytes) {
    faults_.add(place, fmt::format("'{}' has no room for {} bytes of moments", buffer(place.rank, moment).name, bytes));
  }
  holding(place.rank, parameter).write(range, {1});
  holding(place.rank, moment).write({0, 1}, {1});
}

void UnitSymbols::end(std::vector<std::string>& faults) {
  for (int u = 0; u < static_cast<int>(units_.size()) && !options_.forward_only; ++u) {
    if (model_.blocks[u].gradient_size == 0) continue;
    for (size_t s = 0; s < units_[u].norms.size(); ++s) {
      const bool counts = !transfers_.places().slices[u][s].empty();
      if (units_[u].norms[s] == 1 || (!counts && units_[u].norms[s] == 0)) continue;
      faults.push_back(fmt::format("squares of unit {} slice {} are counted {} times", u, s, units_[u].norms[s]));
    }
    for (size_t d = 0; d < units_[u].updates.size(); ++d) {
      if (units_[u].updates[d] == 1) continue;
      faults.push_back(fmt::format("unit {} is updated {} times by its data rank {}", u, units_[u].updates[d], d));
    }
  }
  const int version = options_.forward_only ? 0 : 1;
  for (int r = 0; r < static_cast<int>(plan_.programs.size()); ++r) {
    // The commit: every loss and norm is known and every slice is held when the rank comes to the vote.
    for (const Place& vote : commits_[r].votes) {
      for (const Place& p : commits_[r].before) {
        if (!ordering_.before_entry(p, vote)) faults_.add(vote, "does not follow " + name_of(plan_, p));
      }
    }
    if (commits_[r].votes.size() != static_cast<size_t>(version))
      faults.push_back(fmt::format("rank {}: votes {} times", r, commits_[r].votes.size()));
    const auto& buffers = plan_.programs[r].buffers;
    for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
      const int unit = buffers[b].unit;
      bool current = true;
      if (unit >= 0 && buffers[b].kind == BufferKind::kMoment) {
        current = version_over(r, b, unit, BufferKind::kMoment, {0, 1}, version);
      }
      if (unit >= 0 && buffers[b].kind == BufferKind::kParameter) {
        for (const auto& [range, place] : transfers_.pieces_of(buffers[b], unit, r)) {
          current &= version_over(r, b, unit, BufferKind::kParameter, {place, place + range.size()}, version);
        }
      }
      if (!current)
        faults.push_back(fmt::format("rank {}: '{}' is not up to date when the step ends", r, buffers[b].name));
    }
  }
}

}  // namespace tutti
