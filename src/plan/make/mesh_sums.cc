// A unit is complete when every block here that adds to its gradient has done so in the round; a
// parcel, when all its units are. Then it is summed, while backward goes on below it.
#include "plan/make/mesh_sums.h"

#include <algorithm>

#include "plan/ir/tags.h"

namespace tutti {

MeshSums::MeshSums(const MeshWork& work, MeshMemory& state, MeshBuilder& program)
    : work_(work), homes_(work.homes), state_(state), program_(program) {}

void MeshSums::after(const LayerVisit& visit) {
  // An idle visit has a route without folds: it adds nothing, but comes to the sums with the
  // others.
  const MeshRoute& route = work_.routes()[visit.micro];

  // Units whose gradients of this round are all there; some have other homes.
  std::set<int> complete;
  for (int64_t c = homes_.columns.begin; c < homes_.columns.end; ++c) {
    const int block = homes_.model.block_at(visit.layer, static_cast<int>(c));

    // Every gradient buffer that the backward wrote is folded: its own unit's, and those apart.
    // What it wrote after an owner's own gradient is folded with that.
    const bool has_own = homes_.model.blocks[block].gradient_size > 0;
    if (has_own)
      fold(visit, block, [&](int level) { return state_.gradient(block, level, route.round); });
    for (int owner : homes_.owners_of(block))
      if (!homes_.together(block, owner))
        fold(visit, owner, [&](int level) { return state_.gradient_apart(block, owner, level); });

    if (!route.last) continue;
    if (has_own && wrote(block, block, route.round)) complete.insert(block);
    for (int owner : homes_.owners_of(block))
      if (wrote(block, owner, route.round)) complete.insert(owner);
  }

  if (!route.last) return;
  for (int unit : complete)
    if (completes(unit, route.round))
      reduce(homes_.places.parcels[homes_.places.parcel_of[unit]], route.round);
}

template <class F>
void MeshSums::fold(const LayerVisit& visit, int unit, F&& at_level) {
  const auto& folds = work_.routes()[visit.micro].folds;
  if (folds.empty()) return;
  Instruction i = work_.instruction(Op::kFold, visit, unit);
  for (const auto& [into, from] : folds) i.adds.push_back({at_level(into), at_level(from)});
  program_.add(QueueUse::kCompute, std::move(i));
}

/// Notes that a block has written a unit's gradient of a round. Returns whether it was the last one
/// here to do so.
bool MeshSums::wrote(int block, int unit, int round) {
  auto& writers = writers_[{unit, round}];
  if (writers.empty())
    for (int other : homes_.blocks()) {
      const auto& owners = homes_.owners_of(other);
      if (other == unit || std::find(owners.begin(), owners.end(), unit) != owners.end())
        writers.insert(other);
    }
  writers.erase(block);
  return writers.empty();
}

/// Counts a unit that is complete. Returns whether all units of its parcel are.
bool MeshSums::completes(int unit, int round) {
  const int parcel = homes_.places.parcel_of[unit];
  return ++complete_[{parcel, round}] == homes_.places.parcels[parcel].size();
}

/// Adds the Reduce of a round and, after the last one, what follows from the sum.
void MeshSums::reduce(const Parcel& parcel, int round) {
  const int first = parcel.front().unit;  // those of a parcel have one home and one way
  if (homes_.places.by_hosts(first)) {
    reduce_by_hosts(parcel);
  } else {
    Instruction i;
    i.round = round;
    i.group = homes_.users_and_owners(first);
    for (const UnitRange& part : parcel) {
      const std::vector<Operand> terms = contributions(part.unit, round);
      i.operands.insert(i.operands.end(), terms.begin(), terms.end());
      if (homes_.is_home(part.unit)) add_sums(i, part.unit);
    }
    add_reduce(std::move(i), parcel, static_cast<uint32_t>(round));
  }

  // Squares are counted once: by the first data ranks, as many as there are slices. The others have
  // replicas of the same.
  const bool whole = static_cast<size_t>(round) + 1 == work_.rounds.size();
  if (!whole || !homes_.is_home(first)) return;
  if (homes_.at.data < homes_.reduce_shards()) norm(parcel);
  if (spread_of(homes_.options, homes_.places, first) == Spread::kGathered) gather_gradient(parcel);
}

/// Adds to a Reduce where this rank makes its slice of a unit's sum, level by level.
void MeshSums::add_sums(Instruction& reduce, int unit) {
  for (int level : state_.stack(unit))
    reduce.operands.push_back({OperandRole::kSum, Access::kUpdate, level, unit});
}

/// Sums by hosts, in two rounds. The sum over a subtree of my host takes the place of what I add to
/// it; from there it goes to the ranks of the other hosts.
void MeshSums::reduce_by_hosts(const Parcel& parcel) {
  const int data = homes_.at.data, together = homes_.places.host_ranks,
            hosts = homes_.options.mesh.data / together;
  const int first = parcel.front().unit;
  Instruction inside, between;
  inside.round = 0;
  inside.group = homes_.host_ranks(first);
  between.round = 1;
  between.group = homes_.position_ranks(first);

  // A sum of the first Reduce is a term of the second.
  for (const auto& [unit, range] : parcel) {
    const std::vector<Operand> terms = contributions(unit, 0);
    inside.operands.insert(inside.operands.end(), terms.begin(), terms.end());
    for (const Range& tree : subtrees_of_host(work_.sums, together, data / together)) {
      const int sum = state_.host_sum(unit, tree);
      inside.operands.push_back({OperandRole::kSum, Access::kUpdate, sum, unit});
      between.operands.push_back({OperandRole::kTerm, Access::kRead, sum, unit, range});
    }
    add_sums(between, unit);
  }

  add_reduce(std::move(inside), parcel, static_cast<uint32_t>(data / together));
  add_reduce(std::move(between), parcel, static_cast<uint32_t>(hosts + data % together));
}

/// Gives a Reduce its id. `number` counts the meetings for the parcel's sum: one per round, or one
/// per host and then one per position in a host.
void MeshSums::add_reduce(Instruction reduce, const Parcel& parcel, uint32_t number) {
  const int together = homes_.places.host_ranks, unit = parcel.front().unit;
  const size_t meetings =
      together > 0 ? homes_.options.mesh.data / together + together : work_.rounds.size();
  reduce.op = Op::kReduce;
  reduce.parcel = homes_.places.parcel_of[unit];
  reduce.id = kReduceIds.at(static_cast<size_t>(reduce.parcel) * meetings + number);
  // Ranks that share a parameter over stages come to its sum at different times, so nothing else
  // may wait for it: it has a queue of its own.
  program_.add(homes_.shared_far(unit) ? QueueUse::kShared : QueueUse::kData, std::move(reduce));
}

/// What this rank has for a round of a unit's sum: nothing if it had no lane.
std::vector<Operand> MeshSums::contributions(int unit, int round) {
  std::vector<Operand> list;
  const auto add = [&](int buffer, Range range) {
    list.push_back({OperandRole::kTerm, Access::kRead, buffer, unit, range});
  };
  for (int p = 0; p < work_.partials_in(round); ++p) {
    // At home, a partial has the unit's own gradient and those of users in the same chunk, which
    // are stored after it. Gradients apart have buffers of their own, on whatever rank.
    if (homes_.is_home(unit)) {
      add(state_.gradient(unit, p, round), {0, homes_.model.blocks[unit].unit_size});
      for (int block : homes_.blocks()) {
        const auto& owners = homes_.owners_of(block);
        if (std::find(owners.begin(), owners.end(), unit) != owners.end() &&
            homes_.together(block, unit))
          add(state_.gradient(unit, p, round), homes_.extras_of(block, unit));
      }
    }
    for (const auto& [block, owner] : homes_.shares_apart())
      if (owner == unit)
        add(state_.gradient_apart(block, owner, p), homes_.extras_of(block, owner));
  }
  return list;
}

/// Sums the squares of my slices, for the gradient norm. What is shared over stages has a place of
/// its own, since its queue has.
void MeshSums::norm(const Parcel& parcel) {
  const bool far = homes_.shared_far(parcel.front().unit);
  Instruction i;
  i.op = Op::kNorm;
  i.parcel = homes_.places.parcel_of[parcel.front().unit];
  for (const UnitRange& part : parcel)
    i.operands.push_back({OperandRole::kSum, Access::kRead, state_.stack(part.unit)[0], part.unit,
                          homes_.slice(part.unit)});
  i.operands.push_back(
      {OperandRole::kSquares, Access::kUpdate, far ? state_.shared_squares : state_.squares});
  program_.add(far ? QueueUse::kShared : QueueUse::kData, std::move(i));
}

/// The sum comes to all who want it whole: an all-gather among the ranks that made its slices.
void MeshSums::gather_gradient(const Parcel& parcel) {
  const int first = parcel.front().unit;
  Instruction i;
  i.op = Op::kGather;
  i.parcel = homes_.places.parcel_of[first];

  // Each group of ranks that has all slices gathers by itself.
  const int together = homes_.reduce_shards(), replicas = homes_.options.mesh.data / together;
  i.id =
      kGradientGatherIds.at(static_cast<uint64_t>(i.parcel * replicas + homes_.at.data / together));
  i.group = homes_.places.host_ranks > 0 ? homes_.host_ranks(first) : homes_.data_ranks(first);

  for (const auto& [unit, range] : parcel) {
    i.operands.push_back(
        {OperandRole::kPart, Access::kRead, state_.stack(unit)[0], unit, homes_.slice(unit)});
    i.operands.push_back({OperandRole::kWhole, Access::kUpdate,
                          state_.gradient(unit, 0, static_cast<int>(work_.rounds.size()) - 1), unit,
                          range});
  }
  program_.add(QueueUse::kData, std::move(i));
}

}  // namespace tutti
