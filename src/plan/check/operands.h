// Whether the operands of an instruction are those that its op knows: their roles, accesses, units
// and ranges, and memory that is there. Part of plan/check/structure.h.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"

namespace tutti {

/// Adds the faults of one instruction's operands. What else the instruction names need not
/// have been checked.
void check_operands(const Plan& plan, const ModelShape& model, Place place,
                    std::vector<std::string>& faults);

}  // namespace tutti
