// The program of one rank of a mesh: the generator's second half, after places and schedule.
#pragma once

#include <vector>

#include "plan/make/plan_mesh.h"

namespace tutti {

/// `places` have their schedule, and `groups` are mesh_groups(). Operands that are borrowed do not
/// know their buffer yet, because it is in another rank's program. A pure function.
Program rank_program(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
                     const std::vector<std::vector<int>>& groups, int rank);

}  // namespace tutti
