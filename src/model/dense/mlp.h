// The multilayer perceptron: dense layers, then a linear head, all under autograd.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// Makes blocks "layers.0", "layers.1", ... and "head", which ends with the loss: of classes, or of
/// model.outputs values. With train.tensor_slices > 1 it has as many columns
/// (model/core/column_block.h). Throws Error for layers that cannot be cut.
Model make_mlp(const Job& job);

}  // namespace tutti
