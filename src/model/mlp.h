// The multilayer perceptron: linear and GELU layers, then a linear head with cross-entropy, all through the adaptor.
#pragma once

#include "config/job.h"
#include "model/segment.h"

namespace tutti {

/// Blocks "layers.0", "layers.1", ... and "head". Data: "features" [B, inputs] float, "targets" [B] int64.
Model make_mlp(const Job& job);

}  // namespace tutti
