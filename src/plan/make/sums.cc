#include "plan/make/sums.h"

#include <algorithm>

#include "plan/make/ids.h"

namespace tutti {

MeshReduces::MeshReduces(const MeshWork& work, MeshState& state, MeshProgram& program)
    : work_(work), homes_(work.homes), state_(state), program_(program) {}

void MeshReduces::after(const MeshPass& pass) {
  const MeshRoute& route = work_.routes()[pass.micro];  // an idle one adds nothing, but meets the others
  std::set<int> complete;  // units whose gradients of this round are all there; some are of other homes
  for (int64_t c = homes_.columns.begin; c < homes_.columns.end; ++c) {
    const int block = homes_.model.block_at(pass.layer, static_cast<int>(c));
    const bool has_own = homes_.model.blocks[block].gradient_size > 0;
    if (has_own) fold(pass, block, [&](int level) { return state_.gradient(block, level, route.round); });
    for (int owner : homes_.owners_of(block))
      if (!homes_.together(block, owner))
        fold(pass, owner, [&](int level) { return state_.gradient_apart(block, owner, level); });
    if (!route.last) continue;
    if (has_own && wrote(block, block, route.round)) complete.insert(block);
    for (int owner : homes_.owners_of(block))
      if (wrote(block, owner, route.round)) complete.insert(owner);
  }
  if (!route.last) return;
  for (int unit : complete) reduce(unit, route.round);
}

template <class F>
void MeshReduces::fold(const MeshPass& pass, int unit, F&& at_level) {
  const auto& folds = work_.routes()[pass.micro].folds;
  if (folds.empty()) return;
  Instruction i = work_.instruction(Op::kFold, pass, unit);
  for (const auto& [into, from] : folds) i.adds.push_back({at_level(into), at_level(from)});
  program_.add(MeshProgram::kCompute, std::move(i));
}

/// Notes that a block has written a unit's gradient of a round; whether it was the last one here to do so.
bool MeshReduces::wrote(int block, int unit, int round) {
  auto& writers = writers_[{unit, round}];
  if (writers.empty())
    for (int other : homes_.blocks()) {
      const auto& owners = homes_.owners_of(other);
      if (other == unit || std::find(owners.begin(), owners.end(), unit) != owners.end()) writers.insert(other);
    }
  writers.erase(block);
  return writers.empty();
}

void MeshReduces::reduce(int unit, int round) {
  if (homes_.places.by_hosts(unit)) {
    reduce_by_hosts(unit);
  } else {
    Instruction i;
    i.round = round;
    i.group = homes_.users_and_owners(unit);
    i.reads = contributions(unit, round);
    if (homes_.is_home(unit)) i.writes = state_.stack(unit);
    add_reduce(std::move(i), unit, static_cast<uint32_t>(round));
  }
  const bool whole = static_cast<size_t>(round) + 1 == work_.rounds.size();
  if (!whole || !homes_.is_home(unit)) return;
  if (homes_.at.data < homes_.reduce_shards()) norm(unit);
  if (homes_.options.zero == 0 && homes_.options.mesh.data > 1) gather_gradient(unit);
}

/// My host's sum lies in place of my own part of it; from there it goes to those of the other hosts.
void MeshReduces::reduce_by_hosts(int unit) {
  const int data = homes_.at.data, together = homes_.places.host_ranks, hosts = homes_.options.mesh.data / together;
  Instruction inside;
  inside.round = 0;
  inside.group = homes_.host_ranks(unit);
  inside.reads = inside.writes = {state_.gradient(unit, 0, 0)};
  add_reduce(std::move(inside), unit, static_cast<uint32_t>(data / together));
  Instruction between;
  between.round = 1;
  between.group = homes_.position_ranks(unit);
  between.reads = {state_.gradient(unit, 0, 0)};
  between.writes = state_.stack(unit);
  add_reduce(std::move(between), unit, static_cast<uint32_t>(hosts + data % together));
}

/// `number`: of those that meet for the unit's sum.
void MeshReduces::add_reduce(Instruction reduce, int unit, uint32_t number) {
  const int together = homes_.places.host_ranks;
  const size_t meetings = together > 0 ? homes_.options.mesh.data / together + together : work_.rounds.size();
  reduce.op = Op::kReduce;
  reduce.block = unit;
  reduce.id = kReduceIds + static_cast<uint32_t>(unit * meetings) + number;
  // Those who share a parameter over stages come to its sum at other times: nothing else may wait behind it.
  program_.add(homes_.shared_far(unit) ? MeshProgram::kShared : MeshProgram::kData, std::move(reduce));
}

/// What this rank has for a round of a unit's sum: nothing, where it had no lane.
std::vector<int> MeshReduces::contributions(int unit, int round) {
  std::vector<int> list;
  for (int p = 0; p < work_.partials_in(round); ++p) {
    if (homes_.is_home(unit)) list.push_back(state_.gradient(unit, p, round));
    for (const auto& [block, owner] : homes_.shares_apart())
      if (owner == unit) list.push_back(state_.gradient_apart(block, owner, p));
  }
  return list;
}

void MeshReduces::norm(int unit) {
  const bool far = homes_.shared_far(unit);
  Instruction i;
  i.op = Op::kNorm;
  i.block = unit;
  i.reads = {state_.stack(unit)[0]};
  i.writes = {far ? state_.shared_squares : state_.squares};
  program_.add(far ? MeshProgram::kShared : MeshProgram::kData, std::move(i));
}

void MeshReduces::gather_gradient(int unit) {
  Instruction i;
  i.op = Op::kGather;
  i.block = unit;
  const int together = homes_.reduce_shards(), replicas = homes_.options.mesh.data / together;
  i.id = kGradientGatherIds + static_cast<uint32_t>(unit * replicas + homes_.at.data / together);
  i.group = homes_.places.host_ranks > 0 ? homes_.host_ranks(unit) : homes_.data_ranks(unit);
  i.reads = {state_.stack(unit)[0]};
  i.writes = {state_.gradient(unit, 0, static_cast<int>(work_.rounds.size()) - 1)};
  program_.add(MeshProgram::kData, std::move(i));
}

}  // namespace tutti
