// What moves gradients and parameters between buffers and ranks: Fold, Reduce and Gather of UnitSymbols.
#include <fmt/format.h>

#include <algorithm>

#include "plan/check/units.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// The float of gradient space that lies at a byte of the window.
int64_t float_at(const Buffer& buffer, int64_t offset) {
  return buffer.range.begin + (offset - buffer.window_offset) / kFloat;
}

}  // namespace

void UnitSymbols::fold(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.adds.empty()) faults_.add(place, "adds nothing");
  for (const Add& add : i.adds) {
    Holding &into = holding(place.rank, add.into), &from = holding(place.rank, add.from);
    const auto whole = [&](const Holding& h) { return h.unit == i.block && h.kind == BufferKind::kGradient; };
    if (!whole(into) || !whole(from) || add.into == add.from || into.pieces.size() != from.pieces.size()) {
      faults_.add(place, fmt::format("adds '{}' to '{}', which do not both hold the unit",
                                     buffer(place.rank, add.from).name, buffer(place.rank, add.into).name));
      continue;
    }
    const Buffer &left = buffer(place.rank, add.into), &right = buffer(place.rank, add.from);
    const int64_t bytes = (left.range.empty() ? model_.blocks[i.block].gradient_size : left.range.size()) * kFloat;
    if (left.range != right.range || left.bytes < bytes || right.bytes < bytes) {
      faults_.add(place, fmt::format("'{}' and '{}' are not both {} bytes of the unit", left.name, right.name, bytes));
    }
    bool defined = true;
    for (size_t k = 0; k < into.pieces.size(); ++k) {
      UnitPiece& piece = into.pieces[k];
      defined &= piece.range == from.pieces[k].range;
      for (size_t p = 0; p < piece.worth.size(); ++p) {
        const int other = from.pieces[k].worth[p];
        defined &= (piece.worth[p] == kUndefined) == (other == kUndefined);
        piece.worth[p] = expressions_.sum(piece.worth[p], other);
      }
    }
    if (!defined) faults_.add(place, "adds what was not written");
  }
}

int UnitSymbols::level_buffer(const Instruction& reduce, int rank, int level) const {
  if (level >= static_cast<int>(reduce.writes.size())) return -1;
  const int b = reduce.writes[level];
  return buffer(rank, b).level == level ? b : -1;
}

UnitSymbols::Levels UnitSymbols::stack_of(const Instruction& reduce, int rank, Range slice, int levels) {
  Levels stack(levels, std::vector<int>(units_[reduce.block].parts, kUndefined));
  for (int level = 0; level < levels && reduce.round > 0; ++level) {
    const int b = level_buffer(reduce, rank, level);
    if (b < 0 || holding(rank, b).unit != reduce.block) continue;
    const auto pieces = holding(rank, b).over(slice);
    if (pieces.size() == 1) stack[level] = pieces[0].worth;
  }
  return stack;
}

std::vector<int> UnitSymbols::contribution(Place place, const SumSource::Term& term, Range at_term, int unit) {
  std::vector<int> nothing(units_[unit].parts, kUndefined);
  const int b = window_buffer(plan_.programs[term.rank], term.offset);
  const int64_t begin = float_at(buffer(term.rank, b), term.offset) + at_term.begin;
  const Holding& h = holding(term.rank, b);
  const auto pieces = h.over({begin, begin + at_term.size()});
  if (h.unit == unit && h.kind == BufferKind::kGradient && pieces.size() == 1) return pieces[0].worth;
  faults_.add(place, fmt::format("'{}' of rank {} does not hold the gradient of unit {}", buffer(term.rank, b).name,
                                 term.rank, unit));
  return nothing;
}

/// The round's additions, for every source that the slice has a part of.
void UnitSymbols::add_round(Place place, const SumTransfer& transfer, Range slice, Levels& levels) {
  for (size_t s = 0; s < transfer.sources.size(); ++s) {
    const SumSource& source = transfer.sources[s];
    const Range part = overlap(slice, source.to);
    if (part.empty()) continue;
    Levels terms;
    for (const auto& term : source.terms) {
      terms.push_back(
          contribution(place, term, {part.begin - source.to.begin, part.end - source.to.begin}, transfer.unit));
    }
    const Source& own = units_[transfer.unit].sources[s];
    for (const auto& worth : terms) {
      for (int p = 0; p < static_cast<int>(worth.size()); ++p) {
        const bool foreign = p < own.first_part || p >= own.first_part + own.parts;
        if (!foreign || worth[p] == kUndefined) continue;
        return faults_.add(place, "what it reads is added up with further users' gradients already");
      }
    }
    for (int p = own.first_part; p < own.first_part + own.parts; ++p) {
      for (const LevelSum& sum : transfer.sums) {
        std::vector<int> worth;
        for (int term : sum.terms) worth.push_back(term < 0 ? levels[-1 - term][p] : terms[term][p]);
        for (const auto& [into, from] : sum.order) worth[into] = expressions_.sum(worth[into], worth[from]);
        levels[sum.level][p] = worth[0];
      }
    }
  }
}

void UnitSymbols::reduce(const std::vector<Place>& places) {
  const SumTransfer transfer = transfers_.sum(at(plan_, places[0]));
  std::vector<Levels> results;
  for (size_t m = 0; m < places.size(); ++m) {
    const Instruction& i = at(plan_, places[m]);
    const Range slice = transfer.slices[m];
    Levels& levels = results.emplace_back();
    if (transfer.last()) commits_[places[m].rank].before.push_back(places[m]);
    if (slice.empty()) continue;
    levels = stack_of(i, places[m].rank, slice, transfer.levels);
    add_round(places[m], transfer, slice, levels);
  }
  for (size_t m = 0; m < places.size(); ++m) {
    const Instruction& i = at(plan_, places[m]);
    const int rank = places[m].rank;
    for (int level = 0; level < static_cast<int>(results[m].size()); ++level) {
      const int b = level_buffer(i, rank, level);
      if (b < 0) {
        faults_.add(places[m], fmt::format("has no level {} for its sum", level));
        continue;
      }
      const Range slice = transfer.slices[m], held = buffer(rank, b).range;
      // In place the slice lies in its own first contribution; else it has a buffer of its own.
      const bool in_place = transfer.in_place() && !i.reads.empty() && i.reads[0] == b;
      const int64_t bytes = (in_place ? slice.end : level_floats(transfer, static_cast<int>(m))) * kFloat;
      if ((!in_place && held != slice) || (in_place && !held.empty()) || buffer(rank, b).bytes < bytes) {
        faults_.add(places[m], fmt::format("'{}' has no room for its slice", buffer(rank, b).name));
        continue;
      }
      Holding& h = holding(rank, b);
      if (!in_place) h.reset(i.block, BufferKind::kGradient);
      h.write(slice, results[m][level]);
    }
  }
}

void UnitSymbols::gather(const std::vector<Place>& places) {
  struct Write {
    int rank, buffer;
    int64_t shift;
    BufferKind kind;
    std::vector<UnitPiece> pieces;
  };
  std::vector<Write> writes;
  const Instruction& first = at(plan_, places[0]);
  const auto place_of = [&](int rank) {
    return *std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.rank == rank; });
  };
  for (const auto& copy : copies_.at(first.id).copies) {
    const Place to = place_of(copy.to);
    const int b = window_buffer(plan_.programs[copy.from], copy.offset);
    const int64_t begin = float_at(buffer(copy.from, b), copy.offset);
    const Holding& h = holding(copy.from, b);
    const int target = at(plan_, to).writes[copy.write];
    const int64_t lands = buffer(copy.to, target).range.begin + copy.at / kFloat;
    auto pieces = h.over({begin, begin + copy.bytes / kFloat});
    if (h.unit != first.block || pieces.empty() || buffer(copy.to, target).kind != h.kind) {
      faults_.add(
          to, fmt::format("'{}' of rank {} does not hold unit {}", buffer(copy.from, b).name, copy.from, first.block));
      pieces.clear();
    }
    writes.push_back({copy.to, target, lands - begin, h.kind, std::move(pieces)});
  }
  for (const Place& place : places) {
    const Instruction& i = at(plan_, place);
    if (!i.writes.empty() && i.block != first.block) faults_.add(place, "gathers another unit");
  }
  for (const Write& w : writes) {
    Holding& h = holding(w.rank, w.buffer);
    if (h.unit != first.block || h.kind != w.kind) h.reset(first.block, w.kind);
    for (const UnitPiece& piece : w.pieces)
      h.write({piece.range.begin + w.shift, piece.range.end + w.shift}, piece.worth);
  }
}

}  // namespace tutti
