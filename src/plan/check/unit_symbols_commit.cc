// The end of a step: Norm, Vote and Update of UnitSymbols, and what must hold when all is done.
#include <fmt/format.h>

#include <algorithm>

#include "plan/check/unit_symbols.h"

namespace tutti {

/// A rank counts the squares of its own slices, once they are the job's sum.
void UnitSymbols::norm(Place place) {
  const Instruction& i = at(plan_, place);
  const auto sums = operands_of(i, OperandRole::kSum);
  const Parcel& parcel = plan_.parcels[i.parcel];
  if (operands_of(i, OperandRole::kSquares).size() != 1 || sums.size() != parcel.size())
    return faults_.add(place, "reads the sum of every unit of its parcel and adds to one place");
  for (size_t k = 0; k < parcel.size(); ++k) {
    const int unit = parcel[k].unit;
    const auto& owners = plan_.ownership[unit].sums;
    const Range own = range_of(owners, place.rank);
    if (sums[k]->unit != unit || sums[k]->range != own) {
      faults_.add(place, fmt::format("counts other squares of unit {} than its own", unit));
      continue;
    }

    // A slice may have several owners (replicas); how often each slice is counted is judged
    // at the end.
    total_over(place, sums[k]->buffer, unit, own);
    for (size_t s = 0; s < owners.size(); ++s)
      if (contains(owners[s].ranks, place.rank)) ++units_[unit].norms[s];
  }
  commits_[place.rank].before.push_back(place);
}

/// Nobody else writes where losses, squares or the verdict are, and those who make them
/// write nowhere else.
void UnitSymbols::guard(Place place, int b, bool word) {
  const Commit& commit = commits_[place.rank];
  const Op op = at(plan_, place).op;
  const auto theirs = [&](int buffer, Op maker) { return b == buffer && (op != maker || !word); };
  const auto of_norms = [&](int buffer) { return theirs(buffer, Op::kNorm); };
  const bool squares = std::any_of(commit.squares.begin(), commit.squares.end(), of_norms) ||
                       std::any_of(commit.counted.begin(), commit.counted.end(), of_norms);
  if (theirs(commit.losses, Op::kForward) || squares || theirs(commit.verdict, Op::kVote)) {
    faults_.add(place, fmt::format("writes '{}', which is not for it", buffer(place.rank, b).name));
  }

  // The other way round: all that make one kind write to one place, which the vote reads.
  const bool maker = word && (op == Op::kForward || op == Op::kNorm || op == Op::kVote);
  if (maker && b != (op == Op::kForward ? commit.losses
                     : op == Op::kNorm  ? commit.squares[place.queue]
                                        : commit.verdict)) {
    faults_.add(place, fmt::format("writes '{}', others of its kind elsewhere",
                                   buffer(place.rank, b).name));
  }
}

/// Only the last segment of the model adds to the losses, and only the first time that it runs.
void UnitSymbols::mark_loss(Place place) {
  const Instruction& i = at(plan_, place);
  const BlockShape& block = model_.blocks[i.block];
  const bool last = block.layer + 1 == model_.layers() &&
                    i.segment + 1 == static_cast<int>(block.segments.size());
  if (i.operands.size() != (last && !i.again ? 1 : 0))
    faults_.add(place, "the loss has one place, others have none");
  if (last && !i.again) commits_[place.rank].before.push_back(place);
}

/// The vote reads the losses and all squares that this rank's Norms count. That it comes after them
/// is judged at the end.
void UnitSymbols::vote(Place place) {
  const Instruction& i = at(plan_, place);
  Commit& commit = commits_[place.rank];
  const auto losses = operands_of(i, OperandRole::kLoss);
  if (losses.size() != 1 || losses[0]->buffer != commit.losses)
    faults_.add(place, "does not read the losses");
  for (int b : commit.squares)
    if (b >= 0 && !contains(commit.counted, b))
      faults_.add(place, fmt::format("does not read '{}'", buffer(place.rank, b).name));
  if (operands_of(i, OperandRole::kVerdict).size() != 1) faults_.add(place, "writes one verdict");
  commit.votes.push_back(place);
}

/// An Update follows the vote, reads the job's sum, and takes what it updates from version 0 to 1.
void UnitSymbols::update(Place place) {
  const Instruction& i = at(plan_, place);
  const Commit& commit = commits_[place.rank];
  if (commit.votes.size() != 1 || !ordering_.before(commit.votes[0], place))
    return faults_.add(place, "does not follow the vote");
  if (!is_home(plan_, place.rank, i.block))
    return faults_.add(place, "its unit is not this rank's");

  // The range that this rank updates is the one whose moments it owns.
  const Range range = range_of(plan_.ownership[i.block].moments, place.rank);
  ++units_[i.block].updates[place.rank];
  const auto one = [&](OperandRole role, BufferKind kind) {
    const auto list = operands_of(i, role, i.block);
    return list.size() == 1 && list[0]->access == Access::kUpdate &&
           buffer(place.rank, list[0]->buffer).kind == kind;
  };
  if (buffer_of(i, OperandRole::kVerdict) !=
          buffer_of(at(plan_, commit.votes[0]), OperandRole::kVerdict) ||
      !one(OperandRole::kParameter, BufferKind::kParameter) ||
      !one(OperandRole::kMoment, BufferKind::kMoment))
    return faults_.add(place, "goes by the verdict and updates parameters and moments of its unit");

  // The step's gradient, parameters and moments are there. A second Update would find version 1.
  check_gradients(place, range);
  const int parameter = buffer_of(i, OperandRole::kParameter),
            moment = buffer_of(i, OperandRole::kMoment);
  if (!version_over(place.rank, parameter, i.block, BufferKind::kParameter, range, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's parameters",
                                   buffer(place.rank, parameter).name));
  }
  if (!version_over(place.rank, moment, i.block, BufferKind::kMoment, {0, 1}, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's moments",
                                   buffer(place.rank, moment).name));
  }

  const int64_t bytes = range.size() * static_cast<int64_t>(sizeof(float)) * plan_.optimizer_slots;
  if (buffer(place.rank, moment).bytes < bytes) {
    faults_.add(place, fmt::format("'{}' has no room for {} bytes of moments",
                                   buffer(place.rank, moment).name, bytes));
  }

  holding(place.rank, parameter).write(range, {1});
  holding(place.rank, moment).write({0, 1}, {1});
}

/// The gradients that an Update reads cover what it updates, each with the job's sum; some may
/// be other ranks'.
void UnitSymbols::check_gradients(Place place, Range range) {
  const Instruction& i = at(plan_, place);
  int64_t next = range.begin;
  for (const Operand* gradient : operands_of(i, OperandRole::kGradient)) {
    if (gradient->unit != i.block || gradient->range.begin != next)
      return faults_.add(place, "its gradients do not follow one another");
    const int rank = gradient->rank < 0 ? place.rank : gradient->rank;
    total_over({rank, place.queue, place.index}, gradient->buffer, i.block, gradient->range, place);
    next = gradient->range.end;
  }
  if (next != range.end) faults_.add(place, "its gradients are not those of what it updates");
}

void UnitSymbols::end(std::vector<std::string>& faults) {
  // Every slice is counted once in the norm, and updated once by each of its owners.
  for (int u = 0; u < static_cast<int>(units_.size()) && plan_.training; ++u) {
    if (model_.blocks[u].gradient_size == 0) continue;
    for (size_t s = 0; s < units_[u].norms.size(); ++s) {
      const bool counts = !plan_.ownership[u].sums[s].range.empty();
      if (units_[u].norms[s] == 1 || !counts) continue;
      faults.push_back(fmt::format("squares of unit {} slice {} are counted {} times", u, s,
                                   units_[u].norms[s]));
    }
    for (const Owned& owned : plan_.ownership[u].moments)
      for (int rank : owned.ranks)
        if (const int times = units_[u].updates[rank]; times != 1)
          faults.push_back(fmt::format("unit {} is updated {} times by rank {}", u, times, rank));
  }

  // Evaluation has no vote and changes nothing.
  const int version = plan_.training ? 1 : 0;
  for (int r = 0; r < static_cast<int>(plan_.programs.size()); ++r) {
    // The commit: every loss and norm is known and every slice is held when the rank comes
    // to the vote.
    for (const Place& vote : commits_[r].votes) {
      for (const Place& p : commits_[r].before) {
        if (!ordering_.before_entry(p, vote))
          faults_.add(vote, "does not follow " + name_of(plan_, p));
      }
    }
    if (commits_[r].votes.size() != static_cast<size_t>(version))
      faults.push_back(fmt::format("rank {}: votes {} times", r, commits_[r].votes.size()));

    // No buffer still has old values: copies and whole parameters have been refreshed, too.
    const auto& buffers = plan_.programs[r].buffers;
    for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
      const int unit = buffers[b].unit;
      bool current = true;
      if (unit >= 0 && buffers[b].kind == BufferKind::kMoment) {
        current = version_over(r, b, unit, BufferKind::kMoment, {0, 1}, version);
      }
      if (unit >= 0 && buffers[b].kind == BufferKind::kParameter) {
        for (const auto& [range, place] : placed_in(buffers[b], model_.blocks[unit].unit_size)) {
          current &= version_over(r, b, unit, BufferKind::kParameter, {place, place + range.size()},
                                  version);
        }
      }
      if (!current)
        faults.push_back(
            fmt::format("rank {}: '{}' is not up to date when the step ends", r, buffers[b].name));
    }
  }
}

}  // namespace tutti
