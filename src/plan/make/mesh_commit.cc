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
  // The first units' values come in while the sums are still on their way, then one behind every
  // Update.
  for (size_t u = 0; u < units.size() && u < kAhead; ++u) travel(Op::kFetch, units[u], u);
  vote();
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
  std::set<int> refreshed;  // parcels
  for (int unit : units)
    if ((homes_.sliced() && options_.zero < 3) || homes_.has_remote_users(unit))
      refreshed.insert(homes_.places.parcel_of[unit]);
  for (const auto& [block, owner] : homes_.remote_shares())
    refreshed.insert(homes_.places.parcel_of[owner]);
  // Nothing is left that the last one could go on beside: on compute it wakes no thread. Where
  // homes differ, so may the last one.
  const bool alone = options_.mesh.tensor * options_.mesh.pipeline == 1 && !options_.device;
  for (int parcel : refreshed)
    refresh(parcel, alone && parcel == *refreshed.rbegin() ? QueueUse::kCompute : QueueUse::kData);
}

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

/// Offloaded values of a unit, between the second tier and where Update finds them.
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
  if (options_.offload_parameters)
    add(state_.parameter(unit), state_.updated_parameters(unit, turn));
  if (options_.offload) add(state_.moment(unit), state_.updated_moments(unit, turn));
  if (!i.operands.empty()) program_.add(QueueUse::kTier, std::move(i));
}

/// Where this rank finds what it updates a unit with.
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

void MeshCommit::release(int parcel) {
  Instruction i;
  i.op = Op::kRelease;
  i.parcel = parcel;
  program_.add(QueueUse::kCompute, std::move(i));
}

/// New values for those that hold them whole: data ranks of ZeRO-1 and 2, copies of shared
/// parameters.
void MeshCommit::refresh(int number, QueueUse queue) {
  const Parcel& parcel = homes_.places.parcels[number];
  Instruction i;
  i.op = Op::kGather;
  i.parcel = number;
  i.id = kRefreshIds.at(static_cast<uint64_t>(number));
  i.group = homes_.users_and_owners(parcel.front().unit);
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
