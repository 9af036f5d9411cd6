// The meaning of a mesh's programs: they are run once, in one order that respects everything, on
// symbols instead of numbers (symbolic execution). Part of plan/check/prove.h.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"
#include "plan/check/structure.h"

namespace tutti {

/// Faults of meaning in a plan whose form, order and accesses are sound.
std::vector<std::string> check_values(const Plan& plan, const ModelShape& model,
                                      const Ordering& ordering, const TouchedByAll& touched);

}  // namespace tutti
