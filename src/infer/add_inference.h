// What runs show of their models (train/shows.h), and what jobs add to their models from files.
#pragma once

#include "train/run.h"

namespace tutti {

/// Gives a run everything that this folder adds to runs and models.
void add_inference(RunOptions& options);

}  // namespace tutti
