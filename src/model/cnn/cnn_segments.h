// The hand-written segments of the CNN, for the CPU. Activations between them are [batch, height,
// width, channels].
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/cnn/cnn_shape.h"
#include "model/core/segment.h"

namespace tutti {

/// The kernels that they compute with.
struct CnnTables {
  const Kernels& kernels;
  const ConvKernels& conv;
};

/// What they have in common: each reads one border and puts out one, and all of them have a
/// backward in two parts, so that any of them may fill a pipeline's waits.
class CnnSegment : public Segment {
 public:
  CnnSegment(const char* name, const CnnShape& shape, Border in, Border out)
      : shape_(shape), name_(name), in_(std::move(in)), out_(std::move(out)) {}

  std::string name() const override { return name_; }
  std::vector<Border> inputs() const override { return {in_}; }
  std::vector<Border> outputs() const override { return {out_}; }
  bool splits() const override { return true; }

 protected:
  const CnnShape shape_;

 private:
  const char* name_;
  const Border in_, out_;
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
