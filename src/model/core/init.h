// How parameters start: what [model] init names, as an Init of model/core/segment.h.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// For a weight: (truncated) normal of init_scale, Glorot, He and orthogonal of gain 1, zeros,
/// ones, or the constant init_scale.
Init init_of(const ModelConfig& config);

}  // namespace tutti
