// Sender and receiver walk a transfer in the same order, so messages between two ranks match. An exchange ends on a
// rank's stream when all that it sends has left: what comes behind may overwrite it.
#include "device/transfers.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "comm/tree.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

size_t bytes_of(Range floats) { return static_cast<size_t>(floats.size() * kFloat); }

size_t member_of(const SumTransfer& transfer, int rank) {
  const auto found = std::find(transfer.ranks.begin(), transfer.ranks.end(), rank);
  TUTTI_CHECK(found != transfer.ranks.end(), "{}: rank {} takes no part", transfer.name, rank);
  return static_cast<size_t>(found - transfer.ranks.begin());
}

/// Where float `at` of the unit lies in the contribution of a rank whose window this is.
const float* float_at(const SumSource& source, const SumSource::Term& term, int64_t at, const std::byte* window) {
  return reinterpret_cast<const float*>(window + term.offset) + (at - source.to.begin);
}

}  // namespace

DeviceSum::DeviceSum(const SumTransfer& transfer, int rank, std::byte* window, const std::vector<float*>& levels,
                     std::byte* scratch, DeviceGroup* group, const StateKernels& kernels)
    : group_(group), kernels_(kernels) {
  const Range slice = transfer.slices[member_of(transfer, rank)];
  TUTTI_CHECK(slice.empty() || static_cast<int>(levels.size()) == transfer.levels, "{}: {} levels for a stack of {}",
              transfer.name, levels.size(), transfer.levels);
  give(transfer, rank, window);
  take(transfer, rank, slice, window, reinterpret_cast<float*>(scratch));
  std::set<int64_t> borders{slice.begin, slice.end};
  for (const Part& part : parts_)
    if (!part.floats.empty()) borders.insert({part.floats.begin, part.floats.end});
  for (auto it = borders.begin(); std::next(it) != borders.end(); ++it) add(transfer, {*it, *std::next(it)}, levels);
}

/// Everybody begins with another owner, so that no rank is everyone's first.
void DeviceSum::give(const SumTransfer& transfer, int rank, const std::byte* window) {
  const size_t members = transfer.ranks.size(), me = member_of(transfer, rank);
  for (size_t k = 1; k < members; ++k) {
    const size_t owner = (me + k) % members;
    for (const SumSource& source : transfer.sources) {
      const Range floats = overlap(transfer.slices[owner], source.to);
      for (const SumSource::Term& term : source.terms)
        if (term.rank == rank && !floats.empty())
          sends_.push_back({transfer.ranks[owner], float_at(source, term, floats.begin, window), bytes_of(floats)});
    }
  }
}

void DeviceSum::take(const SumTransfer& transfer, int rank, Range slice, const std::byte* window, float* scratch) {
  int64_t position = 0;
  for (const SumSource& source : transfer.sources) {
    Part& part = parts_.emplace_back(Part{overlap(slice, source.to), position, {}});
    position += part.floats.size();
    for (const SumSource::Term& term : source.terms) {
      if (part.floats.empty()) continue;
      if (term.rank == rank) {
        part.terms.push_back(float_at(source, term, part.floats.begin, window));
        continue;
      }
      part.terms.push_back(scratch);
      receives_.push_back({term.rank, scratch, bytes_of(part.floats)});
      scratch += align_up(part.floats.size(), kAlign);
    }
  }
}

void DeviceSum::add(const SumTransfer& transfer, Range piece, const std::vector<float*>& levels) {
  std::vector<const Part*> adding;
  for (const Part& part : parts_)
    if (part.floats.contains(piece.begin)) adding.push_back(&part);
  for (const LevelSum& sum : transfer.sums) {
    if (transfer.last() && sum.level == 0) {
      add(sum, adding, piece, levels);
    } else {
      TUTTI_CHECK(transfer.rounds > 1, "{}: more than its sum in the only round", transfer.name);
      for (const Part* part : adding) add(sum, {part}, piece, levels);
    }
  }
}

/// The sources' sums, added from left to right, to the level's part of the first.
void DeviceSum::add(const LevelSum& sum, const std::vector<const Part*>& parts, Range piece,
                    const std::vector<float*>& levels) {
  const auto at_level = [&](int level, const Part& part) {
    return levels.at(static_cast<size_t>(level)) + part.position + (piece.begin - part.floats.begin);
  };
  PlacedFold fold{at_level(sum.level, *parts.at(0)), {}, {}, piece.size()};
  for (const Part* part : parts)
    for (int term : sum.terms)
      fold.terms.push_back(term < 0 ? at_level(-1 - term, *part)
                                    : part->terms.at(static_cast<size_t>(term)) + (piece.begin - part->floats.begin));
  std::vector<FoldStep> order;
  for (const auto& [left, right] : sum.order) order.push_back({left, right});
  fold.order = fold_order_of_groups(order, static_cast<int>(sum.terms.size()), static_cast<int>(parts.size()));
  if (fold.terms.size() == 1 && fold.terms[0] == fold.out) return;  // it is where it should be
  folds_.push_back(std::move(fold));
}

void DeviceSum::run(Stream stream) {
  if (!sends_.empty() || !receives_.empty()) group_->exchange(stream, sends_, receives_);
  for (const PlacedFold& fold : folds_) kernels_.fold(stream, fold.out, fold.terms, fold.order, fold.size);
}

int64_t DeviceSum::scratch_bytes(const SumTransfer& transfer, int rank) {
  const Range slice = transfer.slices[member_of(transfer, rank)];
  int64_t floats = 0;
  for (const SumSource& source : transfer.sources)
    for (const SumSource::Term& term : source.terms)
      if (term.rank != rank) floats += align_up(overlap(slice, source.to).size(), kAlign);
  return floats * kFloat;
}

DeviceCopies::DeviceCopies(const CopyTransfer& transfer, int rank, std::byte* window,
                           const std::vector<std::byte*>& targets, Device& device, DeviceGroup* group)
    : device_(device), group_(group) {
  for (const CopyTransfer::Copy& copy : transfer.copies) {
    const auto bytes = static_cast<size_t>(copy.bytes);
    if (bytes == 0 || (copy.from != rank && copy.to != rank)) continue;
    if (copy.to != rank) {
      sends_.push_back({copy.to, window + copy.offset, bytes});
      continue;
    }
    std::byte* to = targets.at(static_cast<size_t>(copy.write)) + copy.at;
    if (copy.from != rank) {
      receives_.push_back({copy.from, to, bytes});
    } else if (to != window + copy.offset) {
      own_.push_back({to, window + copy.offset, bytes});
    }
  }
}

void DeviceCopies::run(Stream stream) {
  for (const PlacedCopy& own : own_) device_.copy(stream, own.to, own.from, own.bytes);
  if (!sends_.empty() || !receives_.empty()) group_->exchange(stream, sends_, receives_);
}

}  // namespace tutti
