// A role is a stage: data and tensor ranks of a stage differ only in which slices, lanes and
// columns they have, and those cost alike.
#include "plan/search/roles.h"

namespace tutti {

std::vector<Program> role_programs(const ModelShape& model, const MeshOptions& options) {
  std::vector<int> first;  // of each stage
  for (int stage = 0; stage < options.mesh.pipeline; ++stage)
    first.push_back(options.mesh.rank({0, 0, stage}));
  return plan_some_ranks(model, options, first);
}

std::vector<int> role_weights(const MeshOptions& options, const CostModel& cost) {
  const auto host = [&](int rank) {
    return cost.hosts.empty() ? 0 : cost.hosts[static_cast<size_t>(rank)];
  };
  std::vector<int> weights;
  for (int stage = 0; stage < options.mesh.pipeline; ++stage) {
    const int first = options.mesh.rank({0, 0, stage});

    // All ranks of a stage have the same work; those on the same host as the first compete with
    // it for cores.
    int together = 0;
    for (int rank = first; rank < first + options.mesh.data * options.mesh.tensor; ++rank)
      together += host(rank) == host(first) ? 1 : 0;
    weights.push_back(together);
  }
  return weights;
}

Simulation simulate_roles(const ModelShape& model, const MeshOptions& options,
                          const CostModel& cost) {
  return simulate(role_programs(model, options), cost, role_weights(options, cost));
}

}  // namespace tutti
