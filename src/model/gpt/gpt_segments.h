// The hand-written segments of the GPT and what they share: how they carve the memory that they are
// given, and their norm. They are written once for every type A of activations: float on the CPU;
// float, bfloat16 and float16 on a GPU. The kernels that they call decide where they run.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>
#include <memory>
#include <span>

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

/// Hands out pieces of a segment's memory in steps of 256 bytes. Without memory it only counts, so
/// that one function gives both a segment's sizes and its use of them.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> memory)
      : memory_(memory.data()), size_(static_cast<int64_t>(memory.size())) {}
  template <class T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  float* floats(int64_t count) { return take<float>(count); }
  int64_t bytes() const { return used_; }

 private:
  std::byte* take_bytes(int64_t count);
  std::byte* memory_ = nullptr;
  int64_t size_ = 0, used_ = 0;
};

template <class A>
A* data(const at::Tensor& tensor) {
  return static_cast<A*>(tensor.data_ptr());
}
inline float* floats(const at::Tensor& tensor) { return data<float>(tensor); }
inline const int64_t* ids(const at::Tensor& tensor) {
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}
/// The floats of the tensor at this place of a block's list; null where an option leaves it out.
inline float* floats(Tensors list, int place) {
  return place == GptPlace::kNone ? nullptr : floats(list[static_cast<size_t>(place)]);
}
/// A weight in the precision in which matmuls read it.
template <class A>
const A* weight(const Context& context, int place) {
  return data<A>(context.weight(static_cast<size_t>(place)));
}

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
