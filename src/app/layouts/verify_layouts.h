// The layouts that `tutti verify` compares: some of data parallelism picked by hand, and a sweep of
// meshes.
#pragma once

#include <string>
#include <vector>

#include "app/train_command.h"

namespace tutti {

/// What the job alone bounds; a pure function. Data parallelism by hand; then every data x tensor x
/// pipeline mesh of at most 8 ranks (4 on a GPU) with every ZeRO stage, and stages alone with every
/// schedule. What is left (recompute, shards, fold, depth, overlap, workers and transport) takes
/// turns over the rows, so that each meets many meshes.
std::vector<LayoutConfig> verify_layouts(const Job& job);

/// For each of the layouts why the job or its model does not go with it, in a line; "": it does.
/// Makes the model: call it in a process that forks nothing later.
std::vector<std::string> layout_faults(const Job& job, const std::vector<LayoutConfig>& layouts,
                                       const Machine& machine, const MakeModel& make_model);

}  // namespace tutti
