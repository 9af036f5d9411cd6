// The multilayer perceptron: linear and GELU layers, then a linear head with cross-entropy, all through the adaptor.
#pragma once

#include "config/job.h"
#include "model/segment.h"

namespace tutti {

/// Blocks "layers.0", "layers.1", ... and "head". Data: "features" [B, inputs] float, "targets" [B] int64.
Model make_mlp(const ModelConfig& config, int64_t micro_batch_size);

/// The init that [model] init names for a weight: a (truncated) normal of init_scale, or Glorot or He uniform of
/// gain 1.
Init weight_init(const ModelConfig& config);

}  // namespace tutti
