// Counts the work of a plan: whatever the model, the lanes and the buckets ask for stands in some queue, exactly once.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"
#include "plan/ir/shape.h"

namespace tutti {

/// Work left out or done twice. Additions are not counted here: their sums are looked at (plan/check/ddp_values.h).
std::vector<std::string> check_census(const Plan& plan, const ModelShape& model, int micro_batches);

}  // namespace tutti
