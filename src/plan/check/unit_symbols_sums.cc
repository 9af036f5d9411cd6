// What moves gradients and parameters between buffers and ranks: Fold, Reduce and Gather of
// UnitSymbols. They work on what the transfers of the plan say, in bytes, since that is
// what engines do.
#include <fmt/format.h>

#include <algorithm>

#include "plan/check/unit_symbols.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// The float of gradient space that is at a byte of the window.
int64_t float_at(const Buffer& buffer, int64_t offset) {
  return buffer.range.begin + (offset - buffer.window_offset) / kFloat;
}

}  // namespace

/// Each addition is made on expressions, part by part; both buffers must hold the same pieces
/// of the unit.
void UnitSymbols::fold(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.adds.empty()) faults_.add(place, "adds nothing");
  for (const Add& add : i.adds) {
    UnitHolding &into = holding(place.rank, add.into), &from = holding(place.rank, add.from);
    const auto whole = [&](const UnitHolding& h) {
      return h.unit == i.block && h.kind == BufferKind::kGradient;
    };
    if (!whole(into) || !whole(from) || add.into == add.from ||
        into.pieces.size() != from.pieces.size()) {
      faults_.add(
          place, fmt::format("adds '{}' to '{}', which do not both hold the unit",
                             buffer(place.rank, add.from).name, buffer(place.rank, add.into).name));
      continue;
    }

    // Both have room for the same floats.
    const Buffer &left = buffer(place.rank, add.into), &right = buffer(place.rank, add.from);
    const int64_t bytes =
        (left.range.empty() ? model_.blocks[i.block].gradient_size : left.range.size()) * kFloat;
    if (left.range != right.range || left.bytes < bytes || right.bytes < bytes) {
      faults_.add(place, fmt::format("'{}' and '{}' are not both {} bytes of the unit", left.name,
                                     right.name, bytes));
    }

    // A part is written in both or in neither.
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

/// The buffer of a level in an owner's stack; -1: there is none.
int UnitSymbols::level_buffer(const Instruction& reduce, int rank, int unit, int level) const {
  const auto stack = operands_of(reduce, OperandRole::kSum, unit);
  if (level >= static_cast<int>(stack.size())) return -1;
  const int b = stack[level]->buffer;
  // If sums are made by hosts, nobody looks for what these make in the first round by its level.
  return plan_.sums[reduce.transfer].by_hosts || buffer(rank, b).level == level ? b : -1;
}

UnitSymbols::Levels UnitSymbols::stack_of(const Instruction& reduce, int rank, int unit,
                                          Range slice, int levels) {
  Levels stack(levels, std::vector<int>(units_[unit].parts, kUndefined));

  // The first round finds nothing on the stack.
  for (int level = 0; level < levels && reduce.round > 0; ++level) {
    const int b = level_buffer(reduce, rank, unit, level);
    if (b < 0 || holding(rank, b).unit != unit) continue;
    const auto pieces = holding(rank, b).over(slice);
    if (pieces.size() == 1) stack[level] = pieces[0].worth;
  }
  return stack;
}

std::vector<int> UnitSymbols::contribution(Place place, const SumSource::Term& term, Range at_term,
                                           int unit) {
  std::vector<int> nothing(units_[unit].parts, kUndefined);

  // A source is written whole, so what is taken of it is one piece.
  const int b = window_buffer(plan_.programs[term.rank], term.offset);
  const int64_t begin = float_at(buffer(term.rank, b), term.offset) + at_term.begin;
  const UnitHolding& h = holding(term.rank, b);
  const auto pieces = h.over({begin, begin + at_term.size()});
  if (h.unit == unit && h.kind == BufferKind::kGradient && pieces.size() == 1)
    return pieces[0].worth;
  faults_.add(place, fmt::format("'{}' of rank {} does not hold the gradient of unit {}",
                                 buffer(term.rank, b).name, term.rank, unit));
  return nothing;
}

/// The round's additions, for every source that the slice has a part of.
void UnitSymbols::add_round(Place place, const SumTransfer& transfer, const UnitSum& unit,
                            Range slice, Levels& levels) {
  for (size_t s = 0; s < unit.sources.size(); ++s) {
    const SumSource& source = unit.sources[s];
    const Range part = overlap(slice, source.to);
    if (part.empty()) continue;

    // The slice takes the same range of each term.
    Levels terms;
    for (const auto& term : source.terms) {
      terms.push_back(contribution(
          place, term, {part.begin - source.to.begin, part.end - source.to.begin}, unit.unit));
    }

    // Sources are only added to each other after the last round. A term that has other sources'
    // parts in it already would count them twice.
    const Source& own = units_[unit.unit].sources[s];
    for (const auto& worth : terms) {
      for (int p = 0; p < static_cast<int>(worth.size()); ++p) {
        const bool foreign = p < own.first_part || p >= own.first_part + own.parts;
        if (!foreign || worth[p] == kUndefined) continue;
        return faults_.add(place,
                           "what it reads is added up with further users' gradients already");
      }
    }

    // The additions, in the order that the transfer says, on expressions.
    for (int p = own.first_part; p < own.first_part + own.parts; ++p) {
      for (const LevelSum& sum : transfer.sums) {
        std::vector<int> worth;
        for (int term : sum.terms)
          worth.push_back(term < 0 ? levels[-1 - term][p] : terms[term][p]);
        for (const auto& [into, from] : sum.order)
          worth[into] = expressions_.sum(worth[into], worth[from]);
        levels[sum.level][p] = worth[0];
      }
    }
  }
}

/// All members together. Last rounds come before the vote: it commits what they made.
void UnitSymbols::reduce(const std::vector<Place>& places) {
  const SumTransfer& transfer = plan_.sums[at(plan_, places[0]).transfer];
  if (transfer.last())
    for (const Place& place : places) commits_[place.rank].before.push_back(place);
  for (const UnitSum& unit : transfer.units) {
    reduce(places, transfer, unit);
    if (transfer.returned != Return::kNone) return_sums(places, unit);
  }
}

void UnitSymbols::reduce(const std::vector<Place>& places, const SumTransfer& transfer,
                         const UnitSum& sum) {
  // The transfer sums the sources that the model says, and no others.
  const std::vector<Source>& wanted = units_[sum.unit].sources;
  bool sound = sum.sources.size() == wanted.size();
  for (size_t s = 0; sound && s < wanted.size(); ++s) sound = sum.sources[s].to == wanted[s].to;
  if (!sound)
    return faults_.add(places[0], fmt::format("does not sum the sources of unit {}", sum.unit));

  // All results are worked out before any is written: in place, one member's slice is written over
  // what another has still to read.
  std::vector<Levels> results;
  for (size_t m = 0; m < places.size(); ++m) {
    const Range slice = sum.slices[m];
    Levels& levels = results.emplace_back();
    if (slice.empty()) continue;
    levels = stack_of(at(plan_, places[m]), places[m].rank, sum.unit, slice, transfer.levels);
    add_round(places[m], transfer, sum, slice, levels);
  }

  // Then each member's slice goes to its levels, where there must be room.
  for (size_t m = 0; m < places.size(); ++m) {
    const Instruction& i = at(plan_, places[m]);
    const int rank = places[m].rank;
    for (int level = 0; level < static_cast<int>(results[m].size()); ++level) {
      const int b = level_buffer(i, rank, sum.unit, level);
      if (b < 0) {
        faults_.add(places[m], fmt::format("has no level {} for its sum", level));
        continue;
      }
      const Range slice = sum.slices[m], held = buffer(rank, b).range;

      // In place the slice overwrites a term, or is where a term would be; otherwise it has a
      // buffer of its own.
      const bool in_place = transfer.in_place() && held.empty();
      const int64_t bytes =
          (in_place ? slice.end : level_floats(transfer, sum, static_cast<int>(m))) * kFloat;
      if ((!in_place && held != slice) || buffer(rank, b).bytes < bytes) {
        faults_.add(places[m], fmt::format("'{}' has no room for its slice", buffer(rank, b).name));
        continue;
      }

      // What else was in a buffer of its own is gone; in place, the rest of the term stays.
      const auto terms = operands_of(i, OperandRole::kTerm, sum.unit);
      const bool added = std::any_of(terms.begin(), terms.end(),
                                     [b](const Operand* term) { return term->buffer == b; });
      UnitHolding& h = holding(rank, b);
      if (!in_place || !added) h.reset(sum.unit, BufferKind::kGradient);
      h.write(slice, results[m][level]);
    }
  }
}

/// What every member has made goes into its place in the first terms of the others.
void UnitSymbols::return_sums(const std::vector<Place>& places, const UnitSum& sum) {
  for (size_t from = 0; from < places.size(); ++from) {
    const int source = level_buffer(at(plan_, places[from]), places[from].rank, sum.unit, 0);
    if (source < 0 || sum.slices[from].empty()) continue;
    const auto pieces = holding(places[from].rank, source).over(sum.slices[from]);
    for (size_t to = 0; to < places.size(); ++to) {
      if (to == from) continue;
      const auto terms = operands_of(at(plan_, places[to]), OperandRole::kTerm, sum.unit);
      const int target = level_buffer(at(plan_, places[to]), places[to].rank, sum.unit, 0);
      if (terms.empty() || terms[0]->buffer != target ||
          !buffer(places[to].rank, target).range.empty()) {
        faults_.add(places[to],
                    fmt::format("has no room for what is returned of unit {}", sum.unit));
        continue;
      }
      for (const UnitPiece& piece : pieces)
        holding(places[to].rank, target).write(piece.range, piece.worth);
    }
  }
}

/// Whether floats of a unit arrive where the target has its place for them.
bool UnitSymbols::lands_right(const Buffer& target, int unit, Range floats, int64_t lands) const {
  const auto placed = placed_in(target, model_.blocks[unit].unit_size);
  return std::any_of(placed.begin(), placed.end(), [&](const PlacedRange& piece) {
    return piece.range.begin <= floats.begin && floats.end <= piece.range.end &&
           piece.at + floats.begin - piece.range.begin == lands;
  });
}

/// All members together: each copy brings pieces of one unit, of the right kind and version,
/// to their place.
void UnitSymbols::gather(const std::vector<Place>& places) {
  struct Write {
    int rank, buffer;
    int64_t shift;
    int unit;
    BufferKind kind;
    std::vector<UnitPiece> pieces;
  };

  // Writes are collected first: a copy must not see what another one of the same Gather brings.
  std::vector<Write> writes;
  const Instruction& first = at(plan_, places[0]);
  const CopyTransfer& transfer = plan_.copies[first.transfer];

  const auto moves = [&](int unit) {
    const Parcel& parcel = plan_.parcels[first.parcel];
    return std::any_of(parcel.begin(), parcel.end(),
                       [&](const UnitRange& part) { return part.unit == unit; });
  };
  const auto place_of = [&](int rank) {
    return *std::find_if(places.begin(), places.end(),
                         [&](const Place& p) { return p.rank == rank; });
  };
  for (const auto& copy : transfer.copies) {
    // From bytes back to floats: what the giver's buffer holds there, and where it arrives.
    const Place to = place_of(copy.to);
    const int b = window_buffer(plan_.programs[copy.from], copy.offset);
    const int64_t begin = float_at(buffer(copy.from, b), copy.offset);
    const UnitHolding& h = holding(copy.from, b);
    const Buffer& target = buffer(copy.to, copy.buffer);
    const int64_t lands = target.range.begin + copy.at / kFloat;
    auto pieces = h.over({begin, begin + copy.bytes / kFloat});

    // What is given is of the parcel and of the taker's kind, and arrives at its place.
    const bool gradients = h.kind == BufferKind::kGradient;
    if (!moves(h.unit) || pieces.empty() || target.kind != h.kind ||
        (target.unit >= 0 && target.unit != h.unit)) {
      faults_.add(to, fmt::format("'{}' of rank {} does not hold what '{}' is for",
                                  buffer(copy.from, b).name, copy.from, target.name));
      pieces.clear();
    } else if (!lands_right(target, h.unit, {begin, begin + copy.bytes / kFloat}, lands)) {
      faults_.add(to, fmt::format("floats of '{}' of rank {} come to another place in '{}'",
                                  buffer(copy.from, b).name, copy.from, target.name));
    }
    if (transfer.gradients != gradients || (gradients && transfer.updated))
      faults_.add(to, fmt::format("takes '{}' for something else", buffer(copy.from, b).name));

    // Gathers after the Updates raise other flags than those before, so that nobody mistakes the
    // values of one for those of the other.
    const bool parameters = h.kind == BufferKind::kParameter;
    for (const UnitPiece& piece : pieces)
      if (parameters && (piece.worth[0] == 1) != transfer.updated)
        faults_.add(to, fmt::format("takes unit {} for {} its Update", h.unit,
                                    transfer.updated ? "after" : "before"));

    writes.push_back({copy.to, copy.buffer, lands - begin, h.unit, h.kind, std::move(pieces)});
  }

  for (const Write& w : writes) {
    UnitHolding& h = holding(w.rank, w.buffer);
    if (h.unit != w.unit || h.kind != w.kind) h.reset(w.unit, w.kind);
    for (const UnitPiece& piece : w.pieces)
      h.write({piece.range.begin + w.shift, piece.range.end + w.shift}, piece.worth);
  }
}

}  // namespace tutti
