// Nothing of a step is written before its vote: Updates read the verdict, so they wait for it, and
// everything that shows new values comes after an Update.
#include "plan/make/mesh_commit.h"

#include <map>
#include <set>

#include "plan/ir/tags.h"

namespace tutti {

namespace {

/// A borrowed buffer before all programs are there: then it gets its number in its own rank's.
constexpr int kUnknownBuffer = -1;

}  // namespace

MeshCommit::MeshCommit(const MeshWork& work, MeshMemory& state, MeshBuilder& program)
    : work_(work),
      homes_(work.homes),
      options_(work.homes.options),
      state_(state),
      program_(program) {}

void MeshCommit::acquire() {
  for (size_t p = 0; p < homes_.places.parcels.size(); ++p) {
    const Parcel& parcel = homes_.places.parcels[p];
    const int first = parcel.front().unit;

    // Parcels of sums only; those of one unit that is merged elsewhere are never borrowed.
    if (!homes_.is_home(first) || homes_.places.parcel_of[first] != static_cast<int>(p) ||
        spread(first) != Spread::kBorrowed)
      continue;

    Instruction i;
    i.op = Op::kAcquire;
    i.parcel = static_cast<int>(p);
    for (const UnitRange& part : parcel)
      i.operands.push_back(
          {OperandRole::kLent, Access::kWrite, state_.gradient(part.unit, 0, 0), part.unit});
    program_.add(QueueUse::kData, std::move(i));
  }
}

void MeshCommit::commit() {
  constexpr size_t kAhead = MeshMemory::kFetchAhead;
  const std::vector<int>& units = homes_.units();

  // The first units' values come in while the sums are still on their way, then one
  // after every Update.
  for (size_t u = 0; u < units.size() && u < kAhead; ++u) travel(Op::kFetch, units[u], u);
  vote();

  // A parcel is released when this rank has read its last unit.
  std::map<int, size_t> updated;  // by parcel: how many of its units are
  for (size_t u = 0; u < units.size(); ++u) {
    update(units[u], u);
    travel(Op::kEvict, units[u], u);
    if (u + kAhead < units.size()) travel(Op::kFetch, units[u + kAhead], u + kAhead);
    const int parcel = homes_.places.parcel_of[units[u]];
    if (spread(units[u]) == Spread::kBorrowed &&
        ++updated[parcel] == homes_.places.parcels[parcel].size())
      release(parcel);
  }

  // New values travel to those who hold what they did not update: the whole unit in ZeRO-1 and 2,
  // copies of shared parameters elsewhere. A set, so that all ranks have one order.
  std::set<int> refreshed;  // parcels
  for (int unit : units)
    if ((homes_.sliced() && options_.zero < 3) || homes_.has_remote_users(unit))
      refreshed.insert(homes_.places.parcel_of[unit]);
  for (const auto& [block, owner] : homes_.remote_shares())
    refreshed.insert(homes_.places.parcel_of[owner]);

  // Nothing is left that the last one could overlap with: on compute it wakes no thread. If there
  // are several homes their last ones may differ, so all stay on data.
  const bool alone = options_.mesh.tensor * options_.mesh.pipeline == 1 && !options_.device;
  for (int parcel : refreshed)
    refresh(parcel, alone && parcel == *refreshed.rbegin() ? QueueUse::kCompute : QueueUse::kData);
}

/// The vote reads what both queues of sums have counted. It is on one of them, so it waits for all
/// that is on the other (or on compute, if the rank has no queue for sums over stages).
void MeshCommit::vote() {
  Instruction i;
  i.op = Op::kVote;
  i.id = kVoteId.first;
  i.operands = {{OperandRole::kLoss, Access::kRead, state_.losses},
                {OperandRole::kSquares, Access::kRead, state_.squares},
                {OperandRole::kSquares, Access::kRead, state_.shared_squares},
                {OperandRole::kVerdict, Access::kWrite, state_.verdict}};
  program_.add(QueueUse::kData, std::move(i), QueueUse::kShared);
}

/// Moves offloaded values of a unit between the second tier and the place where its
/// Update finds them.
void MeshCommit::travel(Op op, int unit, size_t turn) {
  Instruction i;
  i.op = op;
  i.block = unit;
  const bool fetch = op == Op::kFetch;
  const auto add = [&](int tier, int memory) {
    i.operands.push_back(
        {OperandRole::kStored, fetch ? Access::kRead : Access::kWrite, tier, unit});
    i.operands.push_back(
        {OperandRole::kResident, fetch ? Access::kWrite : Access::kRead, memory, unit});
  };
  if (options_.offload_parameters())
    add(state_.parameter(unit), state_.updated_parameters(unit, turn));
  if (options_.offload_moments()) add(state_.moment(unit), state_.updated_moments(unit, turn));
  if (!i.operands.empty()) program_.add(QueueUse::kTier, std::move(i));
}

/// Where this rank finds the gradient that it updates a unit with.
std::vector<Operand> MeshCommit::gradients(int unit) {
  const auto operand = [unit](int buffer, Range range, int rank = -1) {
    return Operand{OperandRole::kGradient, Access::kRead, buffer, unit, range, rank};
  };
  const Range all{0, homes_.model.blocks[unit].unit_size};
  const int whole = state_.gradient(unit, 0, static_cast<int>(work_.rounds.size()) - 1);
  switch (spread(unit)) {
    case Spread::kNone:
      return {operand(state_.stack(unit)[0], options_.zero == 0 ? all : homes_.slice(unit))};
    case Spread::kReturned:
    case Spread::kGathered:
      return {operand(whole, all)};
    case Spread::kBorrowed:
      break;
  }

  // Borrowed: one operand per slice, in my own window or the owner's. Owners are of my host, if
  // sums are made by hosts.
  std::vector<Operand> list;
  const std::vector<Range>& slices = homes_.places.slices[unit];
  const int shards = static_cast<int>(slices.size()), first = homes_.at.data / shards * shards;
  for (int shard = 0; shard < shards; ++shard) {
    if (slices[shard].empty()) continue;
    const int owner = options_.mesh.rank({first + shard, homes_.at.tensor, homes_.at.pipeline});
    const bool mine = owner == homes_.rank;
    list.push_back(operand(mine ? whole : kUnknownBuffer, slices[shard], mine ? -1 : owner));
  }
  return list;
}

/// An Update reads the verdict: it writes nothing if the vote found the step not finite.
void MeshCommit::update(int unit, size_t turn) {
  Instruction i;
  i.op = Op::kUpdate;
  i.block = unit;
  i.operands = gradients(unit);
  i.operands.push_back({OperandRole::kVerdict, Access::kRead, state_.verdict});
  i.operands.push_back(
      {OperandRole::kParameter, Access::kUpdate, state_.updated_parameters(unit, turn), unit});
  i.operands.push_back(
      {OperandRole::kMoment, Access::kUpdate, state_.updated_moments(unit, turn), unit});
  program_.add(QueueUse::kCompute, std::move(i));
}

/// Tells the owners that this rank has read what it borrowed. It touches no buffer: it comes after
/// the Updates on their queue.
void MeshCommit::release(int parcel) {
  Instruction i;
  i.op = Op::kRelease;
  i.parcel = parcel;
  program_.add(QueueUse::kCompute, std::move(i));
}

/// Brings new values to those that hold them whole: data ranks of ZeRO-1 and 2 (an all-gather), and
/// copies of shared parameters.
void MeshCommit::refresh(int number, QueueUse queue) {
  const Parcel& parcel = homes_.places.parcels[number];
  Instruction i;
  i.op = Op::kGather;
  i.parcel = number;
  i.id = kRefreshIds.at(static_cast<uint64_t>(number));
  i.group = homes_.users_and_owners(parcel.front().unit);

  // At home a rank offers its slice, and takes the others' if it holds the unit whole. Elsewhere it
  // only takes its copies.
  for (const auto& [unit, range] : parcel) {
    if (homes_.is_home(unit)) {
      i.operands.push_back(
          {OperandRole::kPart, Access::kRead, state_.parameter(unit), unit, homes_.slice(unit)});
      if (homes_.sliced() && options_.zero < 3)
        i.operands.push_back(
            {OperandRole::kWhole, Access::kUpdate, state_.parameter(unit), unit, range});
    } else {
      for (const auto& [block, owner] : homes_.remote_shares())
        if (owner == unit)
          i.operands.push_back(
              {OperandRole::kWhole, Access::kWrite, state_.copy(block, owner), unit});
    }
  }
  program_.add(queue, std::move(i));
}

}  // namespace tutti
