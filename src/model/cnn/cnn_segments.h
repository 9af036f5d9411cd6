// The hand-written segments of the CNN. Between them activations lie as [batch, height, width,
// channels].
#pragma once

#include <memory>

#include "model/cnn/cnn_shape.h"
#include "model/core/segment.h"

namespace tutti {

struct CnnTables {
  const Kernels& kernels;
  const ConvKernels& conv;
};

std::unique_ptr<Segment> make_cnn_stem(const CnnPlan& plan, const Border& images,
                                       const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_block(const CnnPlan& plan, size_t index, const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_head(const CnnPlan& plan, const CnnTables& tables);

/// What leaves the stem (index 0) or block index - 1, in this layout.
Border cnn_stream(const CnnPlan& plan, size_t index);
Border cnn_logits(const CnnPlan& plan);

}  // namespace tutti
