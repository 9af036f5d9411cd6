// Wide and deep: a linear model of numbers, categories and pairs of categories alongside a
// perceptron on embeddings.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// Makes blocks "embed" (a table of all categories' embeddings), "layers.0", ... and "head": the
/// perceptron's last layer plus the wide part, whose pairs of categories are hashed into kCrosses
/// weights. It ends with the loss.
Model make_wide_deep(const Job& job);

inline constexpr int64_t kCrosses = 4096;

}  // namespace tutti
