// The multilayer perceptron: dense layers, then a linear head, all through the adaptor.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// Blocks "layers.0", "layers.1", ... and "head", which ends with the loss: classes, or
/// model.outputs values. With train.tensor_slices > 1 it has as many columns
/// (model/core/column_block.h). Throws Error for layers that cannot be cut.
Model make_mlp(const Job& job);

}  // namespace tutti
