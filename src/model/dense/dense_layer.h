// A dense layer by hand, for the CPU: dropout(activation(norm(linear(x)))), of which all but the
// linear part may be missing. Its bits are the same on every instruction set; ATen's are not.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// What follows the linear part.
struct DenseLayerConfig {
  NormKind norm = NormKind::kNone;  ///< none, layer or rms
  std::optional<Activation> activation;
  double dropout = 0;
};

/// Its block's parameters are weight, bias and, by the norm, norm.weight and norm.bias. `passed`
/// borders go through unchanged.
std::unique_ptr<Segment> make_dense_layer(const DenseLayerConfig& config, const Kernels& kernels,
                                          const Border& in, const Border& out,
                                          const std::vector<Border>& passed);

}  // namespace tutti
