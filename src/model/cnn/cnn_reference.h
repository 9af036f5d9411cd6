// The CNN under autograd: the same blocks, parameters, buffers and dropout masks as by hand, from
// ATen's operations, whole or in columns.
#pragma once

#include "model/adapt/adaptor.h"
#include "model/cnn/cnn_shape.h"
#include "model/core/segment.h"

namespace tutti {

/// Adds the segments, up to the logits, to blocks that have their parameters. Activations between
/// them are [batch, channels, height, width]. On a GPU they compute in the job's precision.
void add_cnn_reference(const CnnPlan& plan, const Job& job, Model& model);

/// The same network in train.tensor_slices columns (model/core/column_block.h): every convolution
/// is cut by its output channels, the last layer by classes. `model` has its data and gets blocks
/// with all segments up to the logits.
///   stem    images -> parts, gathered; join: parts -> x
///   block   x -> parts, gathered; join: parts -> x. A residual block has two segments before its
///           join:
///             first   x -> hidden, gathered; shortcut, the channels of this column
///             second  hidden, shortcut -> parts
///   head    x -> parts, gathered; join: parts -> logits
/// That it can be cut has been checked.
void add_cnn_columns(const CnnPlan& plan, const Job& job, Model& model);
/// Throws Error with every reason why it cannot be cut; a norm whose groups span columns is one.
void check_cnn_columns(const CnnPlan& plan, const Job& job);

/// A convolution with its norm under autograd. p are its parameters, `groups` a group norm's number
/// of groups.
at::Tensor cnn_layer(const CnnShape& shape, const ConvShape& conv, int64_t groups, const Pass& pass,
                     Tensors p, const at::Tensor& x);
/// What the stem does after its convolution and norm: activation and pool.
at::Tensor cnn_pooled(const CnnShape& shape, const at::Tensor& x);
/// The head, from images [batch, channels, height, width] to logits; `block` keys the dropout.
at::Tensor cnn_classified(const CnnShape& shape, Pass pass, int block, Tensors p,
                          const at::Tensor& x);

/// A segment of such a function that uses parameters [first, first + count) of `block`.
std::unique_ptr<Segment> cnn_segment(AdaptOptions options, std::string name, const Block& block,
                                     size_t first, size_t count, std::vector<Border> in,
                                     std::vector<Border> out, TensorFunction function);

}  // namespace tutti
