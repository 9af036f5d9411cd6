// The entry to this folder: makes the model that a job names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

using MakeModel = std::function<Model(const Job&)>;

/// Makes the model for one rank. Segments may hold state, so every rank makes its own. `job` is
/// resolved. Throws Error for a kind that only a user's C++ program can bring ("custom").
Model make_model(const Job& job);
/// The models that there are.
std::vector<std::string> model_names();

}  // namespace tutti
