// The layouts that `tutti verify` compares: some of data parallelism picked by hand, and a sweep of
// meshes.
#pragma once

#include <string>
#include <vector>

#include "app/train_command.h"

namespace tutti {

/// The layouts to compare, which are a pure function of the job. First comes data parallelism by
/// hand; then every data x tensor x pipeline mesh of at most 8 ranks (4 on a GPU) with every ZeRO
/// stage, and stages alone with every schedule. What is left (recompute, shards, fold, depth,
/// overlap, workers and transport) takes turns over the rows, so that each meets many meshes.
std::vector<LayoutConfig> verify_layouts(const Job& job);

/// One line per layout: why the job or its model does not go with it, or nothing if it does. This
/// makes the model, so it must be called in a process that forks nothing later.
std::vector<std::string> layout_faults(const Job& job, const std::vector<LayoutConfig>& layouts,
                                       const Machine& machine, const MakeModel& make_model);

}  // namespace tutti
