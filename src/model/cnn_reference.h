// The same CNN (blocks, parameters, buffers, dropout masks) from ATen's operations with autograd inside each segment.
#pragma once

#include "model/cnn_shape.h"
#include "model/segment.h"

namespace tutti {

/// Adds the segments, up to the logits, to blocks that have their parameters. Between them activations lie as [batch,
/// channels, height, width]. On a GPU they compute in the job's precision.
void add_cnn_reference(const CnnPlan& plan, const Job& job, Model& model);

}  // namespace tutti
