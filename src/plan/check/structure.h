// The form of a mesh's programs: everything that they name is there, has the size that it needs and
// is where it may be.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/touched.h"

namespace tutti {

/// The faults of form of a plan; empty: it is well-formed. Expects nothing of the plan, and of the
/// model only that it is sound.
std::vector<std::string> check_structure(const Plan& plan, const ModelShape& model);

/// touched_by() for all instructions of a plan: [rank][queue][index].
using TouchedByAll = std::vector<std::vector<std::vector<Touched>>>;
TouchedByAll touched_by_all(const Plan& plan);

}  // namespace tutti
