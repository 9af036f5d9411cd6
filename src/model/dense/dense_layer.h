// A dense layer by hand, for the CPU: dropout(activation(norm(linear(x)))), of which all but the
// linear part may be missing. Its bits are the same on every instruction set; ATen's are not.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/job.h"
#include "model/core/column_block.h"
#include "model/core/segment.h"

namespace tutti {

/// What follows the linear part.
struct DenseLayerConfig {
  NormKind norm = NormKind::kNone;  ///< none, layer, rms or batch
  std::optional<Activation> activation;
  double dropout = 0;
  Columns columns{};  ///< of which whole layer this is a column: it has the whole's masks
};

constexpr double kBatchMomentum = 0.1;  ///< of batch norm's running statistics

/// Its block's parameters are weight, bias and, by the norm, norm.weight, norm.bias, norm.mean and
/// norm.variance. `passed` borders go through unchanged.
std::unique_ptr<Segment> make_dense_layer(const DenseLayerConfig& config, const Kernels& kernels,
                                          const Border& in, const Border& out,
                                          const std::vector<Border>& passed);

}  // namespace tutti
