// The multilayer perceptron: dense layers, then a linear head, all through the adaptor.
#pragma once

#include "config/job.h"
#include "model/segment.h"

namespace tutti {

/// Blocks "layers.0", "layers.1", ... and "head", which ends with the loss: classes, or model.outputs values.
Model make_mlp(const Job& job);

}  // namespace tutti
