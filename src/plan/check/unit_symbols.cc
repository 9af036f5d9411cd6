// Pieces of buffers, what a step begins with, and what Forward, Backward, Fetch and
// Evict do with values of units. Sums and copies are in unit_symbols_sums.cc, the
// commit in unit_symbols_commit.cc.
#include "plan/check/unit_symbols.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace tutti {

void UnitHolding::reset(int new_unit, BufferKind new_kind) {
  unit = new_unit, kind = new_kind;
  pieces.clear();
}

void UnitHolding::cut(Range range, const std::vector<int>& fresh) {
  // Most ranges are whole pieces already.
  const auto same = [&](const UnitPiece& p) { return p.range == range; };
  if (std::any_of(pieces.begin(), pieces.end(), same)) return;

  // One pass in ascending order: pieces are cut at the range's borders, and gaps inside the range
  // are filled with `fresh`.
  std::vector<UnitPiece> cut;
  int64_t next = range.begin;  // the first float of the range that has not been dealt with
  const auto fill = [&](int64_t until) {
    until = std::min(until, range.end);
    if (next < until) cut.push_back({{next, until}, fresh});
    next = std::max(next, until);
  };

  for (UnitPiece& piece : pieces) {
    if (piece.range.begin >= range.begin) fill(piece.range.begin);
    for (int64_t begin = piece.range.begin; begin < piece.range.end;) {
      int64_t end = piece.range.end;
      for (int64_t border : {range.begin, range.end}) {
        if (begin < border && border < end) end = border;
      }
      cut.push_back({{begin, end}, piece.worth});
      begin = end;
    }
    next = std::max(next, piece.range.end);
  }

  fill(range.end);
  pieces = std::move(cut);
}

void UnitHolding::write(Range range, const std::vector<int>& worth) {
  if (range.empty()) return;

  // After the cut whole pieces make up the range: the first becomes all of it, the others go.
  cut(range, worth);
  std::erase_if(pieces, [&](const UnitPiece& p) {
    return range.begin < p.range.begin && p.range.end <= range.end;
  });
  for (UnitPiece& piece : pieces) {
    if (piece.range.begin == range.begin) piece = {range, worth};
  }
}

std::vector<UnitPiece> UnitHolding::over(Range range) const {
  std::vector<UnitPiece> list;

  // A gap between pieces means that something of the range was never written.
  int64_t next = range.begin;
  for (const UnitPiece& piece : pieces) {
    const Range part = overlap(piece.range, range);
    if (part.empty()) continue;
    if (part.begin != next) return {};
    list.push_back({part, piece.worth});
    next = part.end;
  }
  return next == range.end ? list : std::vector<UnitPiece>{};
}

UnitSymbols::UnitSymbols(const Plan& plan, const ModelShape& model, const Ordering& ordering,
                         PlaceFaults& faults)
    : plan_(plan),
      model_(model),
      ordering_(ordering),
      faults_(faults),
      units_(model.blocks.size()),
      commits_(plan.programs.size()) {
  // What every gradient has to be worth in the end: the job's sum, which knows no layout.
  const Batch& batch = plan.batch;
  expected_ = plan.micro_order ? expressions_.job_by_micro(batch.lanes, batch.micro_batches)
                               : expressions_.job(0, batch.lanes, batch.micro_batches);

  // Sources of every unit, and their parts: one per segment of the block that writes them.
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const BlockShape& block = model.blocks[u];
    Unit& unit = units_[u];
    const auto add = [&](int writer, Range to, int64_t stored) {
      const int parts = static_cast<int>(model.blocks[writer].segments.size());
      unit.sources.push_back({writer, to, {stored, stored + to.size()}, unit.parts, parts});
      unit.parts += parts;
    };

    add(u, {0, block.unit_size}, 0);
    for (size_t p = 0; p < block.parameters.size(); ++p) {
      const ParameterShape& parameter = block.parameters[p];
      for (size_t e = 0; e < parameter.extra_gradients.size(); ++e) {
        const Share share{u, static_cast<int>(p), static_cast<int>(e)};
        for (size_t b = 0; b < model.blocks.size(); ++b) {
          const auto& shares = model.blocks[b].shares;
          if (std::find(shares.begin(), shares.end(), share) == shares.end()) continue;
          add(static_cast<int>(b), {parameter.offset, parameter.offset + parameter.size},
              parameter.extra_gradients[e]);
        }
      }
    }

    unit.norms.assign(plan.ownership[u].sums.size(), 0);
  }

  // Where each rank keeps losses, squares and the verdict. They are looked up in the whole program,
  // for guard() must know them before they are written.
  for (const Program& program : plan.programs) {
    Commit& commit = commits_[program.rank];
    for (const Queue& queue : program.queues) {
      commit.squares.push_back(-1);
      for (const Instruction& i : queue.instructions) {
        if (i.op == Op::kForward && !i.operands.empty())
          commit.losses = buffer_of(i, OperandRole::kLoss);
        if (i.op == Op::kNorm) commit.squares.back() = buffer_of(i, OperandRole::kSquares);
        if (i.op != Op::kVote) continue;
        commit.verdict = buffer_of(i, OperandRole::kVerdict);
        // A rank without the last Forward adds nothing to its losses.
        if (commit.losses < 0) commit.losses = buffer_of(i, OperandRole::kLoss);
        for (const Operand* squares : operands_of(i, OperandRole::kSquares))
          commit.counted.push_back(squares->buffer);
      }
    }
  }

  // A step begins with the parameters and moments of the one before. Moments are one value for all
  // that a buffer holds: they are only ever updated whole.
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    auto& holdings = holdings_.emplace_back(plan.programs[r].buffers.size());
    for (size_t b = 0; b < holdings.size(); ++b) {
      const Buffer& buffer = plan.programs[r].buffers[b];
      if (buffer.unit < 0) continue;
      if (buffer.kind == BufferKind::kMoment) {
        holdings[b].reset(buffer.unit, buffer.kind);
        holdings[b].write({0, 1}, {0});
      } else if (buffer.kind == BufferKind::kParameter) {
        holdings[b].reset(buffer.unit, buffer.kind);
        for (const auto& [range, place] : placed_in(buffer, model.blocks[buffer.unit].unit_size)) {
          holdings[b].write({place, place + range.size()}, {0});
        }
      }
    }
  }
}

/// The units that a block reads or writes: its own, if it has one, then those whose
/// parameters it shares.
std::vector<int> UnitSymbols::units_of(int block, bool gradients) const {
  const BlockShape& shape = model_.blocks[block];
  std::vector<int> units;
  if ((gradients ? shape.gradient_size : shape.unit_size) > 0) units.push_back(block);
  std::set<int> owners;
  for (const Share& share : shape.shares) owners.insert(share.unit);
  units.insert(units.end(), owners.begin(), owners.end());
  return units;
}

bool UnitSymbols::version_over(int rank, int b, int unit, BufferKind kind, Range range,
                               int version) {
  const UnitHolding& h = holding(rank, b);
  if (h.unit != unit || h.kind != kind) return range.empty();
  const auto pieces = h.over(range);
  return (range.empty() || !pieces.empty()) &&
         std::all_of(pieces.begin(), pieces.end(),
                     [&](const UnitPiece& p) { return p.worth[0] == version; });
}

void UnitSymbols::need_parameters(Place place) {
  const Instruction& i = at(plan_, place);

  // The parameters must be those of the right units, in the order that the segment expects.
  const std::vector<int> wanted = units_of(i.block, false);
  std::vector<int> given;
  for (const UnitBuffer& p : i.flow.parameters) given.push_back(p.unit);
  if (given != wanted && i.part != Part::kWeight) {
    return faults_.add(place, fmt::format("reads parameters of units [{}], not of [{}]",
                                          fmt::join(given, " "), fmt::join(wanted, " ")));
  }

  // Their values must be this step's: at home in their own place, in a copy where the block's
  // gradients would be.
  for (const UnitBuffer& p : i.flow.parameters) {
    if (!contains(wanted, p.unit))
      faults_.add(place, fmt::format("has no part in unit {}", p.unit));
    for (const Source& source : units_[p.unit].sources) {
      if (source.block != i.block) continue;
      const Range held = buffer(place.rank, p.buffer).range;
      const bool copy = !held.empty() && held.begin >= model_.blocks[p.unit].unit_size;
      if (version_over(place.rank, p.buffer, p.unit, BufferKind::kParameter,
                       copy ? source.stored : source.to, 0))
        continue;
      faults_.add(place, fmt::format("'{}' does not hold this step's parameters of unit {}",
                                     buffer(place.rank, p.buffer).name, p.unit));
    }
  }
}

void UnitSymbols::write_gradients(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.part == Part::kInput) {
    if (!i.flow.gradients.empty()) faults_.add(place, "writes gradients in its input part");
    return;
  }

  // Gradients of the right units, in buffers that are for them.
  const std::vector<int> wanted = units_of(i.block, true);
  std::vector<int> given;
  for (const UnitBuffer& g : i.flow.gradients) given.push_back(g.unit);
  if (given != wanted) {
    return faults_.add(place, fmt::format("writes gradients of units [{}], not of [{}]",
                                          fmt::join(given, " "), fmt::join(wanted, " ")));
  }

  // Each source that this block is gets the micro-batch's term, in the part of this segment. Other
  // segments' parts stay: a gradient is complete when all have written.
  const int term = expressions_.term(i.lane, i.micro);
  for (const UnitBuffer& g : i.flow.gradients) {
    const Buffer& target = buffer(place.rank, g.buffer);
    const Range held = target.range.empty()
                           ? Range{0, target.bytes / static_cast<int64_t>(sizeof(float))}
                           : target.range;

    UnitHolding& h = holding(place.rank, g.buffer);
    if (h.unit != g.unit || h.kind != BufferKind::kGradient) h.reset(g.unit, BufferKind::kGradient);
    const bool kind =
        target.kind == BufferKind::kGradient && (target.unit < 0 || target.unit == g.unit);
    if (!kind)
      faults_.add(place,
                  fmt::format("'{}' is not for the gradient of unit {}", target.name, g.unit));

    for (const Source& source : units_[g.unit].sources) {
      if (source.block != i.block || source.stored.empty()) continue;
      if (source.stored.begin < held.begin || source.stored.end > held.end) {
        faults_.add(place, fmt::format("'{}' has no room for the gradient of unit {}", target.name,
                                       g.unit));
        continue;
      }
      h.cut(source.stored, std::vector<int>(units_[g.unit].parts, kUndefined));
      for (UnitPiece& piece : h.pieces) {
        if (!overlap(piece.range, source.stored).empty())
          piece.worth[source.first_part + i.segment] = term;
      }
    }
  }
}

bool UnitSymbols::total_over(Place place, int b, int unit, Range range, Place who) {
  const UnitHolding& h = holding(place.rank, b);
  const auto pieces = h.over(range);
  if (!range.empty() && (h.unit != unit || h.kind != BufferKind::kGradient || pieces.empty())) {
    faults_.add(who, fmt::format("'{}' does not hold the gradient of unit {}",
                                 buffer(place.rank, b).name, unit));
    return false;
  }

  // Every part of every source that adds to a piece must be worth the job's sum. What follows from
  // a fault is not reported again.
  for (const UnitPiece& piece : pieces) {
    for (const Source& source : units_[unit].sources) {
      if (overlap(piece.range, source.to).empty()) continue;
      for (int p = 0; p < source.parts; ++p) {
        const int worth = piece.worth[source.first_part + p];
        if (worth == expected_ || worth == kFaulty) continue;
        faults_.add(who, fmt::format("block {} segment {} gives {}, the job says {}", source.block,
                                     p, expressions_.text(worth), expressions_.text(expected_)));
        return false;
      }
    }
  }
  return true;
}

/// Fetch and Evict: what the second tier has of a unit comes into memory, or goes back.
void UnitSymbols::move(Place place) {
  const Instruction& i = at(plan_, place);
  const auto stored = operands_of(i, OperandRole::kStored),
             resident = operands_of(i, OperandRole::kResident);
  if (stored.size() != resident.size() || stored.empty())
    return faults_.add(place, "moves nothing, or to nowhere");

  // Stored and resident buffers come in pairs; values go from one to the other with their version.
  for (size_t k = 0; k < stored.size(); ++k) {
    const bool fetch = i.op == Op::kFetch;
    const int source = (fetch ? stored : resident)[k]->buffer,
              target = (fetch ? resident : stored)[k]->buffer;
    const Buffer &from = buffer(place.rank, source), &to = buffer(place.rank, target);

    const bool moments = from.kind == BufferKind::kMoment;
    const int64_t held = range_of(plan_.ownership[i.block].moments, place.rank).size();
    const int64_t floats =
        moments ? held * plan_.optimizer_slots : model_.blocks[i.block].unit_size;
    const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));

    if (from.offloaded != fetch || to.offloaded == from.offloaded)
      faults_.add(place, fmt::format("'{}' and '{}' are not in the two tiers", from.name, to.name));
    const auto& [tier, memory] = fetch ? std::tie(from, to) : std::tie(to, from);
    if (tier.bytes < bytes || memory.bytes < tier.bytes || from.kind != to.kind ||
        (!moments && from.range != to.range))
      faults_.add(place, fmt::format("'{}' and '{}' do not both hold unit {}", from.name, to.name,
                                     i.block));
    if (holding(place.rank, source).unit != i.block)
      faults_.add(place, fmt::format("'{}' does not hold unit {}", from.name, i.block));

    holding(place.rank, target) = holding(place.rank, source);
  }
}

}  // namespace tutti
