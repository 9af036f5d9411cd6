// The meaning of a plan: its programs run on symbols instead of numbers. A gradient is an expression over (lane, micro)
// terms; what an Update reads must be the job's expression: micro-batches from left to right, lanes over the tree.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"
#include "plan/ir/shape.h"

namespace tutti {

/// Faults of meaning in a plan whose form, order and accesses are sound: work left out or done twice, values used that
/// were not made, sums that are not the job's.
std::vector<std::string> check_values(const Plan& plan, const ModelShape& model, int micro_batches,
                                      const Ordering& ordering);

}  // namespace tutti
