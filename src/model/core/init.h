// How parameters start: turns what [model] init names into an Init of model/core/segment.h.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// The init of a weight: (truncated) normal of deviation init_scale; Glorot, He or orthogonal of
/// gain 1; zeros, ones, or the constant init_scale.
Init init_of(const ModelConfig& config);

}  // namespace tutti
