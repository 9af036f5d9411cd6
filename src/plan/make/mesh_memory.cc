// Buffers of units. Their names say what they are for; an evaluation finds the steps' memory
// by them (plan_evaluation).
#include "plan/make/mesh_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tutti {

namespace {

// Bytes. kNumbers is room for a few numbers of the step.
constexpr int64_t kFloat = sizeof(float), kNumbers = 256;

int64_t unit_bytes(const BlockShape& block) { return align_up(block.unit_size, kAlign) * kFloat; }

}  // namespace

MeshMemory::MeshMemory(const MeshWork& work, MeshBuilder& program)
    : losses(program.add_buffer("losses", BufferKind::kWork, kNumbers)),
      squares(program.add_buffer("squares", BufferKind::kWork, kNumbers)),
      shared_squares(program.add_buffer("shared squares", BufferKind::kWork, kNumbers)),
      verdict(program.add_buffer("verdict", BufferKind::kWork, kNumbers)),
      work_(work),
      homes_(work.homes),
      model_(work.homes.model),
      options_(work.homes.options),
      program_(program) {
  for (int unit : homes_.units()) place_unit(unit);
  place_copies();
  if (!work_.uses().empty()) place_uses();
}

/// Parameters are in the window if other ranks read them: slices, and copies elsewhere. With ZeRO-3
/// a rank has its slice only; otherwise it has room for the whole unit.
void MeshMemory::place_unit(int unit) {
  const Range held = homes_.held(unit);
  Buffer parameter{fmt::format("parameter {}", unit), BufferKind::kParameter,
                   unit_bytes(model_.blocks[unit]), unit};
  parameter.window = homes_.sliced() || homes_.has_remote_users(unit);
  if (homes_.gathers()) {
    parameter.range = held;
    parameter.bytes = held.size() * kFloat;
  }
  parameter.offloaded = options_.offload_parameters();
  parameter_[unit] = program_.add_buffer(parameter);

  // An optimizer's slots are one after the other in one buffer.
  if (options_.forward_only) return;
  Buffer moment{fmt::format("moments {}", unit), BufferKind::kMoment,
                align_up(held.size(), kAlign) * kFloat * options_.optimizer_slots, unit};
  if (homes_.sliced()) moment.range = held;
  moment.offloaded = options_.offload_moments();
  moment_[unit] = program_.add_buffer(moment);
}

/// A copy has the order of the block's gradients (extras_of), so that both are at the same places.
void MeshMemory::place_copies() {
  for (const auto& [block, owner] : homes_.remote_shares()) {
    Buffer copy{fmt::format("copy of {} for {}", owner, block), BufferKind::kParameter, 0, owner};
    copy.range = homes_.extras_of(block, owner);
    copy.bytes = copy.range.size() * kFloat;
    for (const Share& share : model_.blocks[block].shares) {
      if (share.unit != owner) continue;
      const ParameterShape& p = model_.blocks[owner].parameters[share.parameter];
      copy.placed.push_back({{p.offset, p.offset + p.size}, p.extra_gradients[share.extra]});
    }
    copy_[{block, owner}] = program_.add_buffer(copy);
  }
}

/// Any unit may come into any slot, so all slots are as large as the largest unit.
void MeshMemory::place_uses() {
  int64_t widest = 0;
  for (const MeshUse& use : work_.uses())
    widest = std::max(widest, unit_bytes(model_.blocks[use.unit]));
  for (size_t s = 0; s < work_.use_slots(); ++s)
    brought_.push_back(
        program_.add_buffer(fmt::format("gathered {}", s), BufferKind::kParameter, widest));
}

int MeshMemory::parameters(int unit, const LayerVisit& visit) const {
  if (!homes_.brought()) return parameter_.at(unit);
  for (int use : visit.uses)
    if (work_.uses()[use].unit == unit) return brought(static_cast<size_t>(use));
  TUTTI_CHECK(false, "unit {} is not gathered", unit);
}

int MeshMemory::updated_parameters(int unit, size_t turn) {
  if (!options_.offload_parameters()) return parameter_.at(unit);
  return program_.named(fmt::format("fetched parameters {}", turn % kFetchAhead),
                        BufferKind::kParameter, program_.at(parameter_.at(unit)).bytes);
}

int MeshMemory::updated_moments(int unit, size_t turn) {
  if (!options_.offload_moments()) return moment_.at(unit);
  return program_.named(fmt::format("fetched moments {}", turn % kFetchAhead), BufferKind::kMoment,
                        program_.at(moment_.at(unit)).bytes);
}

int MeshMemory::gradient(int unit, int level, int round) {
  const BlockShape& block = model_.blocks[unit];
  const int64_t bytes = align_up(block.gradient_size, kAlign) * kFloat;

  // What others write as well is complete only when their visits are over, so it cannot pass
  // through.
  const bool alone = !homes_.has_other_writers(unit);
  if (!work_.kept && alone) return passing(unit, round, bytes);

  // Scratch is one buffer per column for all units: the columns of a layer go back alternately,
  // layers one after the other, and each fold follows its backward.
  if (level < 0 && alone)
    return program_.named(fmt::format("scratch of column {}", block.column), BufferKind::kGradient,
                          bytes);
  if (level < 0)
    return program_.named(fmt::format("scratch {}", unit), BufferKind::kGradient, bytes, unit);

  // The lowest levels are partials, which the Reduce reads in the window; levels above them are
  // only used while lanes are being folded.
  const bool partial = level < work_.partials();

  const int made =
      program_.named(fmt::format("{} {} of {}", partial ? "partial" : "private", level, unit),
                     BufferKind::kGradient, bytes, unit);
  program_.at(made).level = level;
  program_.at(made).window |= partial;
  return made;
}

/// Gradients that go to the slices' owners at once pass through a few windows, which all
/// units use in turn. With overlap there are two per column: backward fills one while the
/// other is being summed.
int MeshMemory::passing(int unit, int round, int64_t bytes) {
  const int column = model_.blocks[unit].column, turns = options_.overlap ? 2 : 1;
  const auto [it, fresh] = passing_.try_emplace({unit, round}, 0);
  if (fresh) it->second = passed_[column]++ % turns;
  return window(program_.named(fmt::format("passing {} column {}", it->second, column),
                               BufferKind::kGradient, bytes),
                0);
}

/// Lets other ranks read a buffer.
int MeshMemory::window(int made, int level) {
  Buffer& b = program_.at(made);
  b.window = true;
  b.level = level;
  return made;
}

int MeshMemory::gradient_apart(int block, int owner, int level) {
  const Range range = homes_.extras_of(block, owner);
  const bool partial = level >= 0 && level < work_.partials();
  const int made = program_.named(
      fmt::format("{} {} of {} for {}", partial ? "partial" : "private", level, owner, block),
      BufferKind::kGradient, range.size() * kFloat, owner);
  Buffer& b = program_.at(made);
  b.range = range;
  b.level = level;
  b.window |= partial;
  return made;
}

std::vector<UnitBuffer> MeshMemory::gradients(int block, const MeshRoute& route) {
  std::vector<UnitBuffer> all;
  if (model_.blocks[block].gradient_size > 0)
    all.push_back({block, gradient(block, route.level, route.round)});
  for (int owner : homes_.owners_of(block))
    all.push_back({owner, homes_.together(block, owner)
                              ? gradient(owner, route.level, route.round)
                              : gradient_apart(block, owner, route.level)});
  return all;
}

int MeshMemory::host_sum(int unit, Range tree) {
  const int64_t lanes = work_.sums.batch.lanes;

  // In place of a subtree of my own that is part of it, if there is one.
  int level = 0;
  for (const Range& own :
       subtrees(tutti::lanes_of(homes_.at.data, work_.sums.ranks, lanes), lanes)) {
    if (tree.contains(own.begin)) return gradient(unit, level, 0);
    ++level;
  }

  // Otherwise in a buffer as large as a contribution, since the slice has the same place in it.
  return window(program_.named(fmt::format("lanes {} to {} of {}", tree.begin, tree.end - 1, unit),
                               BufferKind::kGradient,
                               align_up(model_.blocks[unit].gradient_size, kAlign) * kFloat, unit),
                level);
}

std::vector<int> MeshMemory::stack(int unit) {
  const bool once = work_.rounds.size() == 1;
  if (once && work_.kept) return {gradient(unit, 0, 0)};  // in place

  // Slices have buffers of their own if a sum takes several rounds, for levels are then kept from
  // one to the next; or if gradients pass through, for these windows are filled again.
  const Range own = homes_.slice(unit);
  const int64_t floats = own.size() + (once ? 0 : further_floats(unit));

  // With several rounds, further users' sums are kept apart until the last one.
  std::vector<int> levels;
  for (int level = 0; level < stack_levels(work_.rounds); ++level) {
    const int made = program_.named(fmt::format("slice {} of {}", level, unit),
                                    BufferKind::kGradient, align_up(floats, kAlign) * kFloat, unit);
    Buffer& b = program_.at(made);
    b.range = own;
    b.level = level;
    b.window = options_.zero == 0;
    levels.push_back(made);
  }
  return levels;
}

/// Floats that further users of shared parameters take in one level of a stack.
int64_t MeshMemory::further_floats(int unit) const {
  const Range own = homes_.slice(unit);
  int64_t floats = 0;
  for (const ParameterShape& p : model_.blocks[unit].parameters) {
    const Range part = overlap(own, {p.offset, p.offset + p.size});
    floats += part.size() * static_cast<int64_t>(p.extra_gradients.size());
  }
  return floats;
}

}  // namespace tutti
