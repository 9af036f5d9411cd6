// Joins the programs of all ranks to a plan: adds what the plan means, and resolves what needs the
// programs of two ranks.
#include "plan/make/plan_mesh.h"

#include <map>
#include <string>

#include "plan/make/make_transfers.h"
#include "plan/make/rank_program.h"

namespace tutti {

namespace {

/// Who has what of a unit, by data rank of its home: ZeRO-1 slices moments, ZeRO-3 parameters as
/// well. Data ranks of one shard are replicas of each other.
Ownership ownership_of(const ModelShape& model, const MeshOptions& options,
                       const MeshPlaces& places, int unit) {
  const std::vector<Range>& slices = places.slices[unit];
  Coordinates home = places.home(model, unit);
  std::vector<Owned> cut(slices.size());
  Owned whole{{0, model.blocks[unit].unit_size}, {}};
  for (size_t s = 0; s < slices.size(); ++s) cut[s].range = slices[s];
  for (home.data = 0; home.data < options.mesh.data; ++home.data) {
    cut[home.data % slices.size()].ranks.push_back(options.mesh.rank(home));
    whole.ranks.push_back(options.mesh.rank(home));
  }
  const bool sliced = options.mesh.shards > 1;
  return {cut, sliced && options.zero == 3 ? cut : std::vector{whole},
          sliced ? cut : std::vector{whole}};
}

/// An Update that borrows names a buffer in another rank's program: the unit's first partial, in
/// whose place the owner makes its sum. Only now are all programs there to look it up.
void resolve_borrows(Plan& plan) {
  std::vector<std::map<int, int>> first(plan.programs.size());  // by rank and unit
  for (size_t r = 0; r < first.size(); ++r)
    for (size_t b = 0; b < plan.programs[r].buffers.size(); ++b) {
      const Buffer& buffer = plan.programs[r].buffers[b];
      if (buffer.kind == BufferKind::kGradient && buffer.window && buffer.level == 0 &&
          buffer.range.empty())
        first[r][buffer.unit] = static_cast<int>(b);
    }
  for (Program& program : plan.programs)
    for (Queue& queue : program.queues)
      for (Instruction& i : queue.instructions)
        for (Operand& operand : i.operands)
          if (operand.rank >= 0) operand.buffer = first[operand.rank].at(operand.unit);
}

}  // namespace

Plan plan_mesh(const ModelShape& model, const MeshOptions& options) {
  MeshPlaces places = mesh_places(model, options);
  add_schedule(model, options, places);

  // What the plan means, for those who read it without these options.
  Plan plan;
  plan.ranks = options.mesh.ranks();
  plan.groups = mesh_groups(model, options, places);
  plan.mesh = options.mesh;
  plan.batch = options.batch;
  plan.micro_order = options.micro;
  plan.training = !options.forward_only;
  plan.optimizer_slots = options.optimizer_slots;
  plan.parcels = places.parcels;
  for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block) {
    plan.homes.push_back(places.home(model, block));
    plan.ownership.push_back(ownership_of(model, options, places, block));
  }

  // Programs, each from the view of its own rank; what needs two of them is resolved last.
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const Coordinates at = options.mesh.at(rank);
    plan.places.push_back({at, places.columns[at.tensor], lanes_of(options.sums(), at.data)});
    plan.programs.push_back(rank_program(model, options, places, plan.groups, rank));
  }
  resolve_borrows(plan);
  add_transfers(plan, model, options, places);
  return plan;
}

Plan plan_evaluation(const ModelShape& model, const MeshOptions& options, const Plan& steps) {
  MeshOptions forward = options;
  forward.forward_only = true;
  Plan plan = plan_mesh(model, forward);
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    // Buffers are matched by the generator's own names, which are the same for the same use.
    std::map<std::string, int> named;
    const auto& buffers = steps.programs[r].buffers;
    for (size_t b = 0; b < buffers.size(); ++b) named[buffers[b].name] = static_cast<int>(b);
    for (Buffer& buffer : plan.programs[r].buffers)
      if (const auto it = named.find(buffer.name); it != named.end()) buffer.same_as = it->second;
  }
  return plan;
}

std::vector<Program> plan_some_ranks(const ModelShape& model, const MeshOptions& options,
                                     const std::vector<int>& ranks) {
  MeshPlaces places = mesh_places(model, options);
  add_schedule(model, options, places);
  const auto groups = mesh_groups(model, options, places);
  std::vector<Program> programs;
  for (int rank : ranks) programs.push_back(rank_program(model, options, places, groups, rank));
  return programs;
}

}  // namespace tutti
