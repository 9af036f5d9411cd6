// The plans of a job: of its steps and of its evaluations, proved. Pure functions, so every rank
// makes all programs.
#pragma once

#include "config/job.h"
#include "plan/ir/plans.h"
#include "plan/make/plan_mesh.h"

namespace tutti {

/// What the job's layout asks of the generator. `slots` is the number of the optimizer's slots.
MeshOptions mesh_options(const Job& job, const ModelShape& shape, int slots);

/// `on_device`: the ranks compute on devices. Throws ConfigError naming why the model does not run
/// on this layout.
Plans plan_ranks(const Job& job, const ModelShape& shape, int slots, bool on_device);

/// Micro-batches of a step in the order in which a rank's program loads them.
std::vector<MicroBatch> loads_of(const Program& program);

}  // namespace tutti
