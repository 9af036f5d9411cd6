// What a plan says of its ranks: their places, what is at home there, who owns what of a unit, and
// what travels together. Part of plan/check/structure.h.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

std::vector<std::string> check_ranks(const Plan& plan, const ModelShape& model);

}  // namespace tutti
