// One rank of each role in place of all. Ranks of one stage do the same on equal costs
// (plan/search/cost.h), so a simulation of the first of each stage says what that of all ranks
// would.
#pragma once

#include <vector>

#include "plan/make/plan_mesh.h"
#include "plan/search/simulate.h"

namespace tutti {

/// The programs of data and tensor coordinate 0 of every stage.
std::vector<Program> role_programs(const ModelShape& model, const MeshOptions& options);
/// How many ranks on its host each of them stands for: the weights of simulate().
std::vector<int> role_weights(const MeshOptions& options, const CostModel& cost);
Simulation simulate_roles(const ModelShape& model, const MeshOptions& options,
                          const CostModel& cost);

}  // namespace tutti
