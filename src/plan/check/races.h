// Whether all accesses of a buffer that conflict are ordered, in every interleaving: within a rank,
// and where others read its windows. Part of plan/check/prove.h.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"
#include "plan/check/structure.h"

namespace tutti {

/// The plan's form and its transfers must be sound.
std::vector<std::string> check_races(const Plan& plan, const Ordering& ordering,
                                     const TouchedByAll& touched);

}  // namespace tutti
