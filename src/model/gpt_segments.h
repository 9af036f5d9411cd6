// The hand-written segments of the GPT, and what they share: how they carve the memory they are given, and their norm.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "model/gpt_shape.h"
#include "model/segment.h"

namespace tutti {

/// Angles of rotary positions (rotary_table), one for all layers; null where positions are learned.
using RotaryTable = std::shared_ptr<const std::vector<float>>;

std::unique_ptr<Segment> make_gpt_embed(const GptShape& shape, const Kernels& kernels);
std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const Kernels& kernels, const RotaryTable& rotary);
std::unique_ptr<Segment> make_gpt_mlp(const GptShape& shape, const Kernels& kernels);
std::unique_ptr<Segment> make_gpt_head(const GptShape& shape, const Kernels& kernels);
std::unique_ptr<Segment> make_gpt_loss(const GptShape& shape, const Kernels& kernels);

/// Hands out pieces of a segment's memory in 64-byte steps. Without memory it only counts, so that a segment's sizes
/// and its use of them are one function.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> memory) : memory_(memory.data()), size_(static_cast<int64_t>(memory.size())) {}
  float* floats(int64_t count);
  int64_t bytes() const { return used_; }

 private:
  std::byte* memory_ = nullptr;
  int64_t size_ = 0, used_ = 0;
};

inline float* floats(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }
inline const int64_t* ids(const at::Tensor& tensor) { return static_cast<const int64_t*>(tensor.const_data_ptr()); }
/// Of the tensor at this place of a block's list; null where an option leaves it out.
inline float* floats(Tensors list, int place) {
  return place == GptPlace::kNone ? nullptr : floats(list[static_cast<size_t>(place)]);
}

/// Layer norm or RMS norm over the width of the residual stream.
class GptNorm {
 public:
  GptNorm(const GptShape& shape, const Kernels& kernels, GptPlace place)
      : shape_(shape), kernels_(kernels), place_(place) {}

  struct Saved {
    float *normal, *mean, *rstd;  // normal: what comes out
  };
  Saved saved(Carver& memory) const;
  void forward(const Context& context, const float* x, const Saved& saved) const;
  /// dx = residual (may be null) + the gradient of x; may be in place, as layer_norm_backward says.
  void backward(const Context& context, const float* dy, const float* x, const Saved& saved, const float* residual,
                float* dx) const;

 private:
  const GptShape& shape_;  // of the segment that it is a part of
  const Kernels& kernels_;
  GptPlace place_;
};

}  // namespace tutti
