#include "plan/mesh_units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tutti {

namespace {

Range overlap(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

bool listed(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

void Holding::reset(int new_unit, BufferKind new_kind) {
  unit = new_unit, kind = new_kind;
  pieces.clear();
}

void Holding::cut(Range range, const std::vector<int>& fresh) {
  const auto same = [&](const Piece& p) { return p.range == range; };
  if (std::any_of(pieces.begin(), pieces.end(), same)) return;
  std::vector<Piece> cut;
  int64_t next = range.begin;  // of the range, what is not there yet
  const auto fill = [&](int64_t until) {
    until = std::min(until, range.end);
    if (next < until) cut.push_back({{next, until}, fresh});
    next = std::max(next, until);
  };
  for (Piece& piece : pieces) {
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

void Holding::write(Range range, const std::vector<int>& worth) {
  if (range.empty()) return;
  cut(range, worth);
  std::erase_if(pieces, [&](const Piece& p) { return range.begin < p.range.begin && p.range.end <= range.end; });
  for (Piece& piece : pieces) {
    if (piece.range.begin == range.begin) piece = {range, worth};
  }
}

std::vector<Piece> Holding::over(Range range) const {
  std::vector<Piece> list;
  int64_t next = range.begin;
  for (const Piece& piece : pieces) {
    const Range part = overlap(piece.range, range);
    if (part.empty()) continue;
    if (part.begin != next) return {};
    list.push_back({part, piece.worth});
    next = part.end;
  }
  return next == range.end ? list : std::vector<Piece>{};
}

UnitValues::UnitValues(const Plan& plan, const ModelShape& model, const MeshOptions& options, const Ordering& ordering,
                       const Transfers& transfers, const Copies& copies, PlaceFaults& faults)
    : plan_(plan),
      model_(model),
      options_(options),
      ordering_(ordering),
      transfers_(transfers),
      copies_(copies),
      faults_(faults),
      units_(model.blocks.size()),
      tier_(plan.programs.size(), std::vector<int>(model.blocks.size(), 0)),
      commits_(plan.programs.size()) {
  const Batch& batch = options.batch;
  expected_ = options.micro ? expressions_.job_by_micro(batch.lanes, batch.micro_batches)
                            : expressions_.job(0, batch.lanes, batch.micro_batches);
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const BlockShape& block = model.blocks[u];
    Unit& unit = units_[u];
    const auto add = [&](int writer, Range to, int64_t lies) {
      const int parts = static_cast<int>(model.blocks[writer].segments.size());
      unit.sources.push_back({writer, to, {lies, lies + to.size()}, unit.parts, parts});
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
          add(static_cast<int>(b), {parameter.offset, parameter.offset + parameter.size}, parameter.extra_gradients[e]);
        }
      }
    }
    unit.norms.assign(transfers.places().slices[u].size(), 0);
    unit.updates.assign(options.mesh.data, 0);
  }
  for (const Program& program : plan.programs) {
    Commit& commit = commits_[program.rank];
    for (const Queue& queue : program.queues) {
      for (const Instruction& i : queue.instructions) {
        if (i.writes.empty()) continue;
        if (i.op == Op::kForward) commit.losses = i.writes[0];
        if (i.op == Op::kNorm) commit.squares = i.writes[0];
        if (i.op == Op::kVote) commit.verdict = i.writes[0];
      }
    }
  }
  // A step begins with the parameters and moments of the one before.
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
        for (const auto& [range, place] : transfers.pieces_of(buffer, buffer.unit, static_cast<int>(r))) {
          holdings[b].write({place, place + range.size()}, {0});
        }
      }
    }
  }
}

bool UnitValues::is_home(int rank, int unit) const {
  Coordinates place = options_.mesh.at(rank);
  place.data = 0;
  return place == transfers_.places().home(model_, unit);
}

/// Without ZeRO every data rank updates all.
Range UnitValues::updated_range(int rank, int unit) const {
  if (options_.zero == 0) return {0, model_.blocks[unit].unit_size};
  return owned_slice(transfers_.places(), unit, options_.mesh.at(rank).data);
}

/// The block's own unit, where it has one, then those whose parameters it shares.
std::vector<int> UnitValues::units_of(int block, bool gradients) const {
  const BlockShape& shape = model_.blocks[block];
  std::vector<int> units;
  if ((gradients ? shape.gradient_size : shape.unit_size) > 0) units.push_back(block);
  std::set<int> owners;
  for (const Share& share : shape.shares) owners.insert(share.unit);
  units.insert(units.end(), owners.begin(), owners.end());
  return units;
}

bool UnitValues::version_over(int rank, int b, int unit, BufferKind kind, Range range, int version) {
  const Holding& h = holding(rank, b);
  if (h.unit != unit || h.kind != kind) return range.empty();
  const auto pieces = h.over(range);
  return (range.empty() || !pieces.empty()) &&
         std::all_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.worth[0] == version; });
}

void UnitValues::need_parameters(Place place) {
  const Instruction& i = at(plan_, place);
  const std::vector<int> wanted = units_of(i.block, false);
  std::vector<int> given;
  for (const UnitBuffer& p : i.flow.parameters) given.push_back(p.unit);
  if (given != wanted && i.part != Part::kWeight) {
    return faults_.add(place, fmt::format("reads parameters of units [{}], not of [{}]", fmt::join(given, " "),
                                          fmt::join(wanted, " ")));
  }
  for (const UnitBuffer& p : i.flow.parameters) {
    if (!listed(wanted, p.unit)) faults_.add(place, fmt::format("has no part in unit {}", p.unit));
    for (const Source& source : units_[p.unit].sources) {
      if (source.block != i.block) continue;
      const Range held = buffer(place.rank, p.buffer).range;
      const bool copy = !held.empty() && held.begin >= model_.blocks[p.unit].unit_size;
      if (version_over(place.rank, p.buffer, p.unit, BufferKind::kParameter, copy ? source.lies : source.to, 0))
        continue;
      faults_.add(place, fmt::format("'{}' does not hold this step's parameters of unit {}",
                                     buffer(place.rank, p.buffer).name, p.unit));
    }
  }
}

void UnitValues::write_gradients(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.part == Part::kInput) {
    if (!i.flow.gradients.empty()) faults_.add(place, "writes gradients in its input part");
    return;
  }
  const std::vector<int> wanted = units_of(i.block, true);
  std::vector<int> given;
  for (const UnitBuffer& g : i.flow.gradients) given.push_back(g.unit);
  if (given != wanted) {
    return faults_.add(place, fmt::format("writes gradients of units [{}], not of [{}]", fmt::join(given, " "),
                                          fmt::join(wanted, " ")));
  }
  const int term = expressions_.term(i.lane, i.micro);
  for (const UnitBuffer& g : i.flow.gradients) {
    const Buffer& target = buffer(place.rank, g.buffer);
    const Range held =
        target.range.empty() ? Range{0, target.bytes / static_cast<int64_t>(sizeof(float))} : target.range;
    Holding& h = holding(place.rank, g.buffer);
    if (h.unit != g.unit || h.kind != BufferKind::kGradient) h.reset(g.unit, BufferKind::kGradient);
    const bool kind = target.kind == BufferKind::kGradient && (target.unit < 0 || target.unit == g.unit);
    if (!kind) faults_.add(place, fmt::format("'{}' is not for the gradient of unit {}", target.name, g.unit));
    for (const Source& source : units_[g.unit].sources) {
      if (source.block != i.block || source.lies.empty()) continue;
      if (source.lies.begin < held.begin || source.lies.end > held.end) {
        faults_.add(place, fmt::format("'{}' has no room for the gradient of unit {}", target.name, g.unit));
        continue;
      }
      h.cut(source.lies, std::vector<int>(units_[g.unit].parts, kUndefined));
      for (Piece& piece : h.pieces) {
        if (!overlap(piece.range, source.lies).empty()) piece.worth[source.first_part + i.segment] = term;
      }
    }
  }
}

bool UnitValues::total_over(Place place, int b, int unit, Range range) {
  const Holding& h = holding(place.rank, b);
  const auto pieces = h.over(range);
  if (!range.empty() && (h.unit != unit || h.kind != BufferKind::kGradient || pieces.empty())) {
    faults_.add(place, fmt::format("'{}' does not hold the gradient of unit {}", buffer(place.rank, b).name, unit));
    return false;
  }
  for (const Piece& piece : pieces) {
    for (const Source& source : units_[unit].sources) {
      if (overlap(piece.range, source.to).empty()) continue;
      for (int p = 0; p < source.parts; ++p) {
        const int worth = piece.worth[source.first_part + p];
        if (worth == expected_ || worth == kFaulty) continue;
        faults_.add(place, fmt::format("block {} segment {} gives {}, the job says {}", source.block, p,
                                       expressions_.text(worth), expressions_.text(expected_)));
        return false;
      }
    }
  }
  return true;
}

void UnitValues::norm(Place place) {
  const Instruction& i = at(plan_, place);
  if (i.reads.size() != 1 || i.writes.size() != 1) return faults_.add(place, "reads one gradient and writes one sum");
  if (!is_home(place.rank, i.block)) return faults_.add(place, "its unit is not this rank's");
  const auto& slices = transfers_.places().slices[i.block];
  const size_t slice = options_.mesh.at(place.rank).data % slices.size();
  total_over(place, i.reads[0], i.block, slices[slice]);
  ++units_[i.block].norms[slice];
  commits_[place.rank].before.push_back(place);
}

void UnitValues::guard(Place place, int b, bool word) {
  const Commit& commit = commits_[place.rank];
  const Op op = at(plan_, place).op;
  const auto theirs = [&](int buffer, Op maker) { return b == buffer && (op != maker || !word); };
  if (theirs(commit.losses, Op::kForward) || theirs(commit.squares, Op::kNorm) || theirs(commit.verdict, Op::kVote)) {
    faults_.add(place, fmt::format("writes '{}', which is not for it", buffer(place.rank, b).name));
  }
  const bool maker = word && (op == Op::kForward || op == Op::kNorm || op == Op::kVote);
  if (maker && b != (op == Op::kForward ? commit.losses : op == Op::kNorm ? commit.squares : commit.verdict)) {
    faults_.add(place, fmt::format("writes '{}', others of its kind elsewhere", buffer(place.rank, b).name));
  }
}

void UnitValues::mark_loss(Place place) {
  const Instruction& i = at(plan_, place);
  const BlockShape& block = model_.blocks[i.block];
  const bool last = block.layer + 1 == model_.layers() && i.segment + 1 == static_cast<int>(block.segments.size());
  if (i.writes.size() != (last && !i.again ? 1 : 0)) faults_.add(place, "the loss has one place, others have none");
}

void UnitValues::vote(Place place) {
  const Instruction& i = at(plan_, place);
  Commit& commit = commits_[place.rank];
  for (int b : {commit.squares, commit.losses}) {
    if (b >= 0 && !listed(i.reads, b))
      faults_.add(place, fmt::format("does not read '{}'", buffer(place.rank, b).name));
  }
  if (i.writes.size() != 1) faults_.add(place, "writes one verdict");
  commit.votes.push_back(place);
}

void UnitValues::update(Place place) {
  const Instruction& i = at(plan_, place);
  const Commit& commit = commits_[place.rank];
  if (commit.votes.size() != 1 || !ordering_.before(commit.votes[0], place))
    return faults_.add(place, "does not follow the vote");
  if (!is_home(place.rank, i.block)) return faults_.add(place, "its unit is not this rank's");
  const Range range = updated_range(place.rank, i.block);
  ++units_[i.block].updates[options_.mesh.at(place.rank).data];
  const auto of_kind = [&](const std::vector<int>& list, BufferKind kind) {
    std::vector<int> found;
    for (int b : list) {
      if (buffer(place.rank, b).kind == kind) found.push_back(b);
    }
    return found;
  };
  const auto gradient = of_kind(i.reads, BufferKind::kGradient), parameter = of_kind(i.reads, BufferKind::kParameter),
             moment = of_kind(i.reads, BufferKind::kMoment);
  const auto& verdict = at(plan_, commit.votes[0]).writes;
  if (gradient.size() != 1 || parameter.size() != 1 || moment.size() != 1 ||
      of_kind(i.reads, BufferKind::kWork) != verdict)
    return faults_.add(place, "reads a verdict, a gradient, parameters and moments, one each");
  if (parameter != of_kind(i.writes, BufferKind::kParameter) || moment != of_kind(i.writes, BufferKind::kMoment) ||
      i.writes.size() != 2)
    return faults_.add(place, "writes the parameters and moments that it reads");
  total_over(place, gradient[0], i.block, range);
  if (!version_over(place.rank, parameter[0], i.block, BufferKind::kParameter, range, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's parameters", buffer(place.rank, parameter[0]).name));
  }
  if (!version_over(place.rank, moment[0], i.block, BufferKind::kMoment, {0, 1}, 0)) {
    faults_.add(place, fmt::format("'{}' does not hold this step's moments", buffer(place.rank, moment[0]).name));
  }
  const int64_t bytes = range.size() * static_cast<int64_t>(sizeof(float)) * options_.optimizer_slots;
  if (buffer(place.rank, moment[0]).bytes < bytes) {
    faults_.add(place,
                fmt::format("'{}' has no room for {} bytes of moments", buffer(place.rank, moment[0]).name, bytes));
  }
  holding(place.rank, parameter[0]).write(range, {1});
  holding(place.rank, moment[0]).write({0, 1}, {1});
}

void UnitValues::fetch(Place place) {
  const Instruction& i = at(plan_, place);
  for (int b : i.writes) {
    holding(place.rank, b).reset(i.block, buffer(place.rank, b).kind);
    holding(place.rank, b).write({0, 1}, {tier_[place.rank][i.block]});
  }
}

void UnitValues::evict(Place place) {
  const Instruction& i = at(plan_, place);
  for (int b : i.reads) {
    const Holding& h = holding(place.rank, b);
    if (h.unit != i.block || h.pieces.empty()) return faults_.add(place, "has nothing of its unit to put away");
    tier_[place.rank][i.block] = h.pieces[0].worth[0];
  }
}

void UnitValues::end(std::vector<std::string>& faults) {
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
    // The commit: every norm is known and every slice is held when the vote begins.
    for (const Place& vote : commits_[r].votes) {
      for (const Place& p : commits_[r].before) {
        if (!ordering_.before(p, vote)) faults_.add(vote, "does not follow " + name_of(plan_, p));
      }
    }
    if (commits_[r].votes.size() != static_cast<size_t>(version))
      faults.push_back(fmt::format("rank {}: votes {} times", r, commits_[r].votes.size()));
    const auto& buffers = plan_.programs[r].buffers;
    std::vector<bool> kept(model_.blocks.size(), false);
    for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
      const int unit = buffers[b].unit;
      bool current = true;
      if (unit >= 0 && buffers[b].kind == BufferKind::kMoment) {
        kept[unit] = true;
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
    for (int u = 0; u < static_cast<int>(units_.size()) && !options_.forward_only; ++u) {
      const bool mine = model_.blocks[u].gradient_size > 0 && is_home(r, u) && !kept[u];
      if (mine && tier_[r][u] != 1)
        faults.push_back(fmt::format("rank {}: the moments of unit {} are not put away", r, u));
    }
  }
}

}  // namespace tutti
