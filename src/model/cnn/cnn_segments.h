// The hand-written segments of the CNN, for the CPU. Activations between them are [batch, height,
// width, channels].
#pragma once

#include <memory>

#include "model/cnn/cnn_shape.h"
#include "model/core/segment.h"

namespace tutti {

/// The kernels that they compute with.
struct CnnTables {
  const Kernels& kernels;
  const ConvKernels& conv;
};

/// The stem reads `images`; block `index` is plan.blocks[index]; the head puts out the logits.
std::unique_ptr<Segment> make_cnn_stem(const CnnPlan& plan, const Border& images,
                                       const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_block(const CnnPlan& plan, size_t index, const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_head(const CnnPlan& plan, const CnnTables& tables);

/// What leaves the stem (index 0) or block index - 1, in this layout.
Border cnn_stream(const CnnPlan& plan, size_t index);
Border cnn_logits(const CnnPlan& plan);

}  // namespace tutti
