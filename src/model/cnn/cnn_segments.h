// The hand-written segments of the CNN, for the CPU. Activations between them are [batch, height,
// width, channels].
#pragma once

#include <memory>
#include <optional>
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

/// The stem reads `images`; block `index` is plan.blocks[index]; the head puts out the logits. Stem
/// and head are those of a column where the shapes are.
std::unique_ptr<Segment> make_cnn_stem(const CnnPlan& plan, const Border& images, const Border& out,
                                       const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_block(const CnnPlan& plan, size_t index, const CnnTables& tables);
std::unique_ptr<Segment> make_cnn_head(const CnnShape& shape, const Border& in, const Border& out,
                                       const CnnTables& tables);

/// One convolution of a column, with its norm and activation. It has some channels of the whole
/// layer's output, and reads all of the input's, which may come in parts that were gathered.
struct CnnColumnLayer {
  const char* name;
  ConvShape conv;
  int first;          ///< of its parameters
  int64_t parts = 1;  ///< of input 0
  /// What is added before the activation, both made of input 1: a shortcut's convolution, or the
  /// channels of this column.
  std::optional<ConvShape> shortcut = std::nullopt;
  int shortcut_first = 0;
  std::optional<int64_t> own = std::nullopt;  ///< number of the column
  std::vector<Border> inputs, outputs;  ///< output 1, if there is one, is input 0 that passes by
};
std::unique_ptr<Segment> make_cnn_column(const CnnColumnLayer& layer, const CnnShape& shape,
                                         const ConvKernels& kernels);

/// Adds the blocks of a CNN in columns, as add_cnn_columns does for autograd.
void add_cnn_columns_by_hand(const CnnPlan& plan, const Job& job, const CnnTables& tables,
                             Model& model);

/// What leaves the stem (index 0) or block index - 1, in this layout.
Border cnn_stream(const CnnPlan& plan, size_t index);
Border cnn_logits(const CnnPlan& plan);

}  // namespace tutti
