// Translates the job's layout into the generator's options, plans, and proves both plans.
#include "train/rank_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "comm/pulls.h"
#include "config/job_parts.h"
#include "plan/check/prove.h"

namespace tutti {

namespace {

/// "blocks.2,blocks.4" as layers.
std::vector<int> layers_of(const std::string& cut, const ModelShape& shape) {
  std::vector<int> layers;
  for (size_t begin = 0; !cut.empty() && begin <= cut.size();) {
    const size_t end = std::min(cut.find(',', begin), cut.size());
    std::string name = cut.substr(begin, end - begin);

    // People put a blank after a comma. Column 0 has the layer's own name, so it stands for all
    // columns.
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    const auto found =
        std::find_if(shape.blocks.begin(), shape.blocks.end(),
                     [&](const BlockShape& b) { return b.name == name && b.column == 0; });
    if (found == shape.blocks.end()) {
      std::string known;
      for (const BlockShape& b : shape.blocks)
        if (b.column == 0) known += (known.empty() ? "" : ", ") + b.name;
      throw ConfigError(
          {fmt::format("layout.cut: the model has no block \"{}\"; it has {}", name, known)});
    }
    layers.push_back(found->layer);
    begin = end + 1;
  }
  return layers;
}

}  // namespace

MeshOptions mesh_options(const Job& job, const ModelShape& shape, int slots) {
  const LayoutConfig& layout = job.layout;
  MeshOptions options;
  static_cast<PlanKeys&>(options) = layout;
  options.mesh = mesh_of(layout);
  options.batch = batch_of(job.train);
  options.micro = job.numerics.order == SumOrder::kMicro;
  options.ring = job.numerics.reduce == ReduceKind::kRing;
  options.cut = layers_of(layout.cut, shape);
  options.device = job.numerics.device == DeviceKind::kCuda;
  options.windows = part_named<TransportPart>(layout.transport).windows;
  options.optimizer_slots = slots;
  return options;
}

Plans plan_ranks(const Job& job, const ModelShape& shape, int slots, bool on_device) {
  MeshOptions options = mesh_options(job, shape, slots);
  options.device = on_device;

  // What the layout asks of the model is checked first, since a plan takes it for granted.
  if (auto faults = mesh_faults(shape, options); !faults.empty())
    throw ConfigError(std::move(faults));

  // How many parcels there are is known once they are planned.
  Plans plan;
  plan.steps = plan_mesh(shape, options);
  if (plan.steps.parcels.size() > static_cast<size_t>(kFlaggedParcels))
    throw ConfigError({fmt::format(
        "the model's units travel in {} parcels, but ranks have flags for {}; fewer layers "
        "or tensor_slices work, or a larger layout.bucket_floats",
        plan.steps.parcels.size(), kFlaggedParcels)});

  // Both plans are proved before a rank runs them: a mistake of the planner must not train wrongly.
  plan.evaluation = plan_evaluation(shape, options, plan.steps);
  for (const Plan* made : {&plan.steps, &plan.evaluation})
    if (auto faults = prove(*made, shape); !faults.empty()) throw ConfigError(std::move(faults));
  return plan;
}

std::vector<MicroBatch> loads_of(const Program& program) {
  std::vector<MicroBatch> loads;
  for (const Instruction& i : program.queues[0].instructions)
    if (i.op == Op::kLoad) loads.push_back({i.lane, i.micro});
  return loads;
}

}  // namespace tutti
