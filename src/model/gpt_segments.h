// The hand-written segments of the GPT, and how they carve the memory they are given.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "model/gpt_shape.h"
#include "model/segment.h"

namespace tutti {

std::unique_ptr<Segment> make_gpt_embed(const GptShape& shape, const Kernels& kernels);
std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const Kernels& kernels);
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

}  // namespace tutti
