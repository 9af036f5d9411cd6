// What the hand-written CNN and its twin under autograd share: sizes, parameters, and how dropout
// is keyed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/column_block.h"
#include "model/core/segment.h"
#include "tensor/conv.h"

namespace tutti {

/// What holds for the whole network.
struct CnnShape {
  int64_t batch, classes;
  std::vector<int64_t> image;  // channels, height, width
  NormKind norm;               // kBatch, kGroup or kNone: a layer norm is a group norm
  bool layer;                  // with one group
  Activation activation;
  Pool pool;
  double dropout;
  bool residual;
  /// Of a column: how many there are. Its classes and its convolutions' outputs are its own part.
  int64_t columns = 1;
  int64_t groups(int64_t channels) const;
  int norm_parameters() const {
    return norm == NormKind::kBatch ? 4 : norm == NormKind::kGroup ? 2 : 1;
  }
  /// Number of parameters of a convolution and its norm. They are the weight, then the norm's
  /// scale, shift, running mean and running variance as far as it has them, or the bias.
  int layer_parameters() const { return 1 + norm_parameters(); }
};

/// A block of a stage: convolutions one after the other, and one alongside them (the shortcut) if
/// the shape changes.
struct CnnBlockShape {
  std::string name;
  std::vector<ConvShape> layers;
  std::optional<ConvShape> shortcut;
  int64_t height() const { return layers.back().out_height(); }
  int64_t width() const { return layers.back().out_width(); }
  int64_t channels() const { return layers.back().out; }
};

/// The whole network's sizes.
struct CnnPlan {
  CnnShape shape;
  ConvShape stem;  // before the pool
  std::vector<CnnBlockShape> blocks;
};

/// Throws Error for what such a network cannot have.
CnnPlan cnn_plan(const Job& job);
/// The blocks with their parameters and without segments: "stem", "stages.S.D", "head".
std::vector<Block> cnn_blocks(const CnnPlan& plan, const ModelConfig& config);

/// A column of a residual block, without segments. The shortcut's parameters are moved before those
/// of the second convolution, because a segment under autograd uses neighbouring parameters and the
/// shortcut belongs to the first.
Block cnn_residual_column(const CnnPlan& plan, const Block& whole, const Columns& columns);

constexpr float kCnnNormEps = 1e-5f;
constexpr double kCnnMomentum = 0.1;

/// Dropout of the features before the last layer. Its rate is 0 outside of training.
Dropout cnn_dropout(const CnnShape& shape, const Pass& pass);

}  // namespace tutti
