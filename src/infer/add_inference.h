// What runs show of their models (train/shows.h), and what jobs add to their models from files.
#pragma once

#include "train/run.h"

namespace tutti {

/// Gives a run all of it.
void add_inference(RunOptions& options);

}  // namespace tutti
