// The hand-written segments of the GPT and what they share: their norm. They are written once for
// every type A of activations: float on the CPU; float, bfloat16 and float16 on a GPU. The kernels
// that they call decide where they run.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <memory>

#include "model/core/carver.h"
#include "model/core/segment.h"
#include "model/gpt/gpt_shape.h"

namespace tutti {

/// The angles of rotary positions (rotary_table), one table for all layers, on the device where the
/// model computes; undefined if positions are learned.
using RotaryTable = at::Tensor;

/// The segments of gpt.h's blocks.
template <class A>
std::unique_ptr<Segment> make_gpt_embed(const GptShape& shape, const KernelsFor<A>& kernels);
template <class A>
std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const KernelsFor<A>& kernels,
                                            const RotaryTable& rotary);
template <class A>
std::unique_ptr<Segment> make_gpt_mlp(const GptShape& shape, const KernelsFor<A>& kernels);
template <class A>
std::unique_ptr<Segment> make_gpt_head(const GptShape& shape, const KernelsFor<A>& kernels);
template <class A>
std::unique_ptr<Segment> make_gpt_loss(const GptShape& shape, const KernelsFor<A>& kernels);

class SideGradients;

/// Layer norm or RMS norm over the width of the residual stream.
template <class A>
class GptNorm {
 public:
  GptNorm(const GptShape& shape, const KernelsFor<A>& kernels, GptPlace place)
      : shape_(shape), kernels_(kernels), place_(place) {}

  struct Saved {
    A* normal;  // the norm's output
    float *mean, *rstd;
  };
  Saved saved(Carver& memory) const;
  void forward(const Context& context, const A* x, const Saved& saved) const;
  /// dx = residual (may be null) + the gradient of x; it may be in place, as layer_norm_backward
  /// says. The gradients of weight and bias go to `sides`.
  void backward(const Context& context, const SideGradients& sides, const A* dy, const A* x,
                const Saved& saved, const A* residual, A* dx) const;

 private:
  const GptShape& shape_;  // of the segment that it is a part of
  const KernelsFor<A>& kernels_;
  GptPlace place_;
};

/// Instantiates something for every type of activations that there are kernels for.
#define TUTTI_FOR_ACTIVATIONS(make) make(float) make(c10::BFloat16) make(c10::Half)

}  // namespace tutti
