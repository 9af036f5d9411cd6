// The form of a mesh's programs: everything they name is there, has the size that it needs and lies
// where it may.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/touched.h"

namespace tutti {

std::vector<std::string> check_structure(const Plan& plan, const ModelShape& model);

/// touched_by() of all instructions of a plan: [rank][queue][index].
using TouchedByAll = std::vector<std::vector<std::vector<Touched>>>;
TouchedByAll touched_by_all(const Plan& plan);

}  // namespace tutti
