// What a job adds to its model from files: first values (model.init_from) and a teacher (loss.kind
// = "distill").
#pragma once

#include "config/job.h"
#include "model/make_model.h"

namespace tutti {

/// Calls make_model and applies the job's files. `fresh` is false where all values come from a
/// checkpoint: then model.init_from is not read, and may be gone. Throws Error naming the file and
/// every parameter that it lacks or shapes otherwise.
Model prepared_model(const Job& job, const MakeModel& make_model, bool fresh = true);

}  // namespace tutti
