// The model that a job names.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// For one rank: segments may hold state, so every rank makes its own. `job` is resolved. Throws
/// Error for a kind that only a C++ program of the user's can bring ("custom").
Model make_model(const Job& job);

}  // namespace tutti
