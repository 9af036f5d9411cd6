// The same CNN (blocks, parameters, buffers, dropout masks) from ATen's operations with autograd
// inside each segment.
#pragma once

#include "model/adapt/adaptor.h"
#include "model/cnn/cnn_shape.h"
#include "model/core/segment.h"

namespace tutti {

/// Adds the segments, up to the logits, to blocks that have their parameters. Between them
/// activations lie as [batch, channels, height, width]. On a GPU they compute in the job's
/// precision.
void add_cnn_reference(const CnnPlan& plan, const Job& job, Model& model);

/// The same network in train.tensor_slices columns (model/core/column_block.h): every convolution
/// by its output channels, the last layer by classes. `model` has its data and gets blocks with all
/// segments up to the logits.
///   stem    images -> parts, gathered; join: parts -> x
///   block   x -> parts, gathered; join: parts -> x. Residual blocks begin in two segments:
///     first   x -> hidden, gathered; beside: the column's channels of the shortcut
///     second  hidden, beside -> parts
///   head    x -> parts, gathered; join: parts -> logits
/// Throws Error with every reason why it cannot be cut: norms whose groups span columns are one.
void add_cnn_columns(const CnnPlan& plan, const Job& job, Model& model);

/// A convolution with its norm under autograd; p are its parameters, `groups` those of a group
/// norm.
at::Tensor cnn_layer(const CnnShape& shape, const ConvShape& conv, int64_t groups, const Pass& pass,
                     Tensors p, const at::Tensor& x);
/// The stem behind its convolution and norm.
at::Tensor cnn_pooled(const CnnShape& shape, const at::Tensor& x);
/// The last layer from images [batch, channels, height, width]; `block` keys the dropout.
at::Tensor cnn_classified(const CnnShape& shape, Pass pass, int block, Tensors p,
                          const at::Tensor& x);

/// A segment of these that uses parameters [first, first + count) of `block`.
std::unique_ptr<Segment> cnn_segment(AdaptOptions options, std::string name, const Block& block,
                                     size_t first, size_t count, std::vector<Border> in,
                                     std::vector<Border> out, TensorFunction function);

}  // namespace tutti
