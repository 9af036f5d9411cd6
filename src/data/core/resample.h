// The order of a job's samples: a keyed permutation of the training records, or draws by
// weight (data.resample).
#pragma once

#include "config/job.h"
#include "data/core/dataset.h"
#include "grid/order.h"

namespace tutti {

/// The order in which training reads `data`. Throws Error for weights that the data does not have:
/// no classes, another number of them, no weight at all.
Order make_order(const Job& job, const Dataset& data);

}  // namespace tutti
