// Sender and receiver walk a transfer in the same order, so messages between two ranks match. An
// exchange ends on a rank's stream when all that it sends has left: what comes after it on the
// stream may overwrite the window.
#include "device/device_transfers.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "comm/tree.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

size_t bytes_of(Range floats) { return static_cast<size_t>(floats.size() * kFloat); }

/// The address of float `at` of the unit in the contribution of the rank whose window this is.
const float* float_at(const SumSource& source, const SumSource::Term& term, int64_t at,
                      const std::byte* window) {
  return reinterpret_cast<const float*>(window + term.offset) + (at - source.to.begin);
}

}  // namespace

DeviceSum::DeviceSum(const SumTransfer& transfer, int rank, std::byte* window,
                     const std::vector<std::vector<float*>>& levels, std::byte* scratch,
                     DeviceGroup* group, const StateKernels& kernels)
    : group_(group), kernels_(kernels) {
  if (!transfer.ordered) {
    add_up(transfer, rank, window);
    return;
  }

  // Sends are listed by owner, receives and scratch by unit.
  give(transfer, rank, window);
  auto* free = reinterpret_cast<float*>(scratch);
  for (size_t u = 0; u < transfer.units.size(); ++u) {
    const Range slice = transfer.units[u].slices[member_of(transfer, rank)];
    TUTTI_CHECK(slice.empty() || static_cast<int>(levels.at(u).size()) == transfer.levels,
                "{} levels for a stack of {}", levels.at(u).size(), transfer.levels);
    const std::vector<Part> parts = take(transfer.units[u], rank, slice, window, free);

    // A source may cover only a part of my slice (another user of a shared parameter). Between two
    // borders the sources are the same, so each such piece is a fold of its own.
    std::set<int64_t> borders{slice.begin, slice.end};
    for (const Part& part : parts)
      if (!part.floats.empty()) borders.insert({part.floats.begin, part.floats.end});
    for (auto it = borders.begin(); std::next(it) != borders.end(); ++it)
      add(transfer, parts, {*it, *std::next(it)}, levels[u]);
  }
}

/// A sum without an order: what this rank has for a unit is added up in its first term, and the
/// group does the rest.
void DeviceSum::add_up(const SumTransfer& transfer, int rank, std::byte* window) {
  for (const UnitSum& unit : transfer.units) {
    std::vector<float*> firsts;  // by source
    for (const SumSource& source : unit.sources) {
      firsts.push_back(nullptr);
      for (const SumSource::Term& term : source.terms) {
        if (term.rank != rank) continue;
        auto* at = reinterpret_cast<float*>(window + term.offset);
        if (firsts.back() == nullptr) {
          firsts.back() = at;
        } else {
          folds_.push_back({firsts.back(), {firsts.back(), at}, {{0, 1}}, source.to.size()});
        }
      }
    }

    // The first source is the unit itself; further ones are added where they belong in it.
    TUTTI_CHECK(std::find(firsts.begin(), firsts.end(), nullptr) == firsts.end(),
                "rank {} has nothing to add to a sum without an order", rank);
    for (size_t s = 1; s < firsts.size(); ++s) {
      float* to = firsts[0] + unit.sources[s].to.begin;
      folds_.push_back({to, {to, firsts[s]}, {{0, 1}}, unit.sources[s].to.size()});
    }
    wholes_.push_back({firsts[0], unit.sources[0].to.size()});
  }
}

/// Lists what is sent to each owner. Every rank begins with another owner, so that no rank is
/// everyone's first.
void DeviceSum::give(const SumTransfer& transfer, int rank, const std::byte* window) {
  const size_t members = transfer.ranks.size(), me = member_of(transfer, rank);
  for (size_t k = 1; k < members; ++k) {
    const size_t owner = (me + k) % members;
    for (const UnitSum& unit : transfer.units)
      for (const SumSource& source : unit.sources) {
        const Range floats = overlap(unit.slices[owner], source.to);
        for (const SumSource::Term& term : source.terms)
          if (term.rank == rank && !floats.empty())
            sends_.push_back({transfer.ranks[owner], float_at(source, term, floats.begin, window),
                              bytes_of(floats)});
      }
  }
}

/// Where the terms of my slice are: my own in the window, the others' in scratch, where they
/// arrive. Positions in a level count the sources one after the other.
std::vector<DeviceSum::Part> DeviceSum::take(const UnitSum& unit, int rank, Range slice,
                                             const std::byte* window, float*& scratch) {
  int64_t position = 0;
  std::vector<Part> parts;
  for (const SumSource& source : unit.sources) {
    Part& part = parts.emplace_back(Part{overlap(slice, source.to), position, {}});
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
  return parts;
}

/// Lists the folds of one piece. Only the last round's sum in level 0 joins the sources; on the
/// levels in between each source keeps a place of its own.
void DeviceSum::add(const SumTransfer& transfer, const std::vector<Part>& parts, Range piece,
                    const std::vector<float*>& levels) {
  std::vector<const Part*> adding;
  for (const Part& part : parts)
    if (part.floats.contains(piece.begin)) adding.push_back(&part);
  for (const LevelSum& sum : transfer.sums) {
    if (transfer.last() && sum.level == 0) {
      add(sum, adding, piece, levels);
    } else {
      TUTTI_CHECK(transfer.rounds > 1, "more than the sum in the only round");
      for (const Part* part : adding) add(sum, {part}, piece, levels);
    }
  }
}

/// One fold: the sources' sums, added from left to right, into the level's part of the first
/// source. A negative term -1 - l is what level l holds.
void DeviceSum::add(const LevelSum& sum, const std::vector<const Part*>& parts, Range piece,
                    const std::vector<float*>& levels) {
  const auto at_level = [&](int level, const Part& part) {
    return levels.at(static_cast<size_t>(level)) + part.position +
           (piece.begin - part.floats.begin);
  };
  PlacedFold fold{at_level(sum.level, *parts.at(0)), {}, {}, piece.size()};

  for (const Part* part : parts)
    for (int term : sum.terms)
      fold.terms.push_back(term < 0 ? at_level(-1 - term, *part)
                                    : part->terms.at(static_cast<size_t>(term)) +
                                          (piece.begin - part->floats.begin));

  // The order of one source's terms is repeated for each source; then the sources are joined.
  std::vector<FoldStep> order;
  for (const auto& [left, right] : sum.order) order.push_back({left, right});
  fold.order = fold_order_of_groups(order, static_cast<int>(sum.terms.size()),
                                    static_cast<int>(parts.size()));
  if (fold.terms.size() == 1 && fold.terms[0] == fold.out) return;  // it is in its place
  folds_.push_back(std::move(fold));
}

void DeviceSum::run(Stream stream) {
  if (!sends_.empty() || !receives_.empty()) group_->exchange(stream, sends_, receives_);
  for (const PlacedFold& fold : folds_)
    kernels_.fold(stream, fold.out, fold.terms, fold.order, fold.size);
  for (const Whole& whole : wholes_)
    if (group_ != nullptr) group_->sum(stream, whole.values, whole.size);
}

/// What take() hands out: the others' terms, each aligned.
int64_t DeviceSum::scratch_bytes(const SumTransfer& transfer, int rank) {
  int64_t floats = 0;
  for (const UnitSum& unit : transfer.units) {
    const Range slice = unit.slices[member_of(transfer, rank)];
    for (const SumSource& source : unit.sources)
      for (const SumSource::Term& term : source.terms)
        if (term.rank != rank) floats += align_up(overlap(slice, source.to).size(), kAlign);
  }
  return transfer.ordered ? floats * kFloat : 0;
}

DeviceCopies::DeviceCopies(const CopyTransfer& transfer, int rank, std::byte* window,
                           const std::function<std::byte*(int)>& memory, Device& device,
                           DeviceGroup* group)
    : device_(device), group_(group) {
  for (const CopyTransfer::Copy& copy : transfer.copies) {
    const auto bytes = static_cast<size_t>(copy.bytes);
    if (bytes == 0 || (copy.from != rank && copy.to != rank)) continue;
    if (copy.to != rank) {
      sends_.push_back({copy.to, window + copy.offset, bytes});
      continue;
    }

    std::byte* to = memory(copy.buffer) + copy.at;
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
