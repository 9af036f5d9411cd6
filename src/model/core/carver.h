// How hand-written segments get at memory: they carve what they are given into arrays, and take the
// elements of tensors as plain pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/core/segment.h"

namespace tutti {

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

/// The place, in a block's list, of a parameter that an option leaves out.
constexpr int kNoPlace = -1;

template <class A>
A* data(const at::Tensor& tensor) {
  return static_cast<A*>(tensor.data_ptr());
}
inline float* floats(const at::Tensor& tensor) { return data<float>(tensor); }
inline const int64_t* ids(const at::Tensor& tensor) {
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}
/// The floats of the tensor at this place of a block's list; null for kNoPlace.
inline float* floats(Tensors list, int place) {
  return place == kNoPlace ? nullptr : floats(list[static_cast<size_t>(place)]);
}
/// A weight in the precision in which matmuls read it.
template <class A>
const A* weight(const Context& context, int place) {
  return data<A>(context.weight(static_cast<size_t>(place)));
}

}  // namespace tutti
