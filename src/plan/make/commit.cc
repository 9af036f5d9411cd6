#include "plan/make/commit.h"

#include <set>

#include "plan/make/ids.h"

namespace tutti {

MeshUpdates::MeshUpdates(const MeshWork& work, MeshState& state, MeshProgram& program)
    : work_(work), homes_(work.homes), options_(work.homes.options), state_(state), program_(program) {}

void MeshUpdates::commit() {
  constexpr size_t kAhead = MeshState::kFetchAhead;
  const std::vector<int>& units = homes_.units();
  // The first units' values come in while the sums are still on their way, then one behind every Update.
  for (size_t u = 0; u < units.size() && u < kAhead; ++u) travel(Op::kFetch, units[u], u);
  vote();
  for (size_t u = 0; u < units.size(); ++u) {
    update(units[u], u);
    travel(Op::kEvict, units[u], u);
    if (u + kAhead < units.size()) travel(Op::kFetch, units[u + kAhead], u + kAhead);
  }
  std::set<int> refreshed;
  for (int unit : units)
    if ((homes_.sliced() && options_.zero < 3) || homes_.has_remote_users(unit)) refreshed.insert(unit);
  for (const auto& [block, owner] : homes_.remote_shares()) refreshed.insert(owner);
  for (int unit : refreshed) refresh(unit);
}

void MeshUpdates::vote() {
  Instruction i;
  i.op = Op::kVote;
  i.id = kVoteId;
  i.reads = {state_.losses, state_.squares, state_.shared_squares};
  i.writes = {state_.verdict};
  program_.add(MeshProgram::kData, std::move(i), MeshProgram::kShared);
}

/// Offloaded values of a unit, between the second tier and where Update finds them.
void MeshUpdates::travel(Op op, int unit, size_t turn) {
  Instruction i;
  i.op = op;
  i.block = unit;
  const auto add = [&](int tier, int memory) {
    (op == Op::kFetch ? i.reads : i.writes).push_back(tier);
    (op == Op::kFetch ? i.writes : i.reads).push_back(memory);
  };
  if (options_.offload_parameters) add(state_.parameter(unit), state_.updated_parameters(unit, turn));
  if (options_.offload) add(state_.moment(unit), state_.updated_moments(unit, turn));
  if (!i.reads.empty()) program_.add(MeshProgram::kTier, std::move(i));
}

void MeshUpdates::update(int unit, size_t turn) {
  const bool whole = options_.zero == 0 && options_.mesh.data > 1;
  const int last_round = static_cast<int>(work_.rounds.size()) - 1;
  const int from = whole ? state_.gradient(unit, 0, last_round) : state_.stack(unit)[0];
  const int parameters = state_.updated_parameters(unit, turn), moments = state_.updated_moments(unit, turn);
  Instruction i;
  i.op = Op::kUpdate;
  i.block = unit;
  i.reads = {state_.verdict, from, parameters, moments};
  i.writes = {parameters, moments};
  program_.add(MeshProgram::kCompute, std::move(i));
}

/// New values for those that hold them whole: data ranks of ZeRO-1 and 2, copies of shared parameters.
void MeshUpdates::refresh(int unit) {
  Instruction i;
  i.op = Op::kGather;
  i.block = unit;
  i.id = kRefreshIds + static_cast<uint32_t>(unit);
  i.group = homes_.users_and_owners(unit);
  if (homes_.is_home(unit)) {
    i.reads = {state_.parameter(unit)};
    if (homes_.sliced() && options_.zero < 3) i.writes = {state_.parameter(unit)};
  } else {
    for (const auto& [block, owner] : homes_.remote_shares())
      if (owner == unit) i.writes.push_back(state_.copy(block, owner));
  }
  program_.add(MeshProgram::kData, std::move(i));
}

}  // namespace tutti
