// Where a kernel of the table runs: on the calling thread's current stream, with scratch from
// ATen's pool. Also the types of its arrays as the kernels' files name them.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <optional>
#include <vector>

#include "cuda/launch.h"

namespace tutti {

/// Scratch goes back to the pool with the queue. What is put on the stream later may use it again.
class CurrentQueue : public rows::Queue {
 public:
  CurrentQueue() : Queue(c10::cuda::getCurrentCUDAStream()) {}

  void* take(size_t bytes) override {
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    taken_.push_back(
        at::detail::empty_cuda({static_cast<int64_t>(bytes)}, at::kByte, device, std::nullopt));
    return taken_.back().mutable_data_ptr();
  }

 private:
  std::vector<at::TensorBase> taken_;
};

// c10's 16-bit types and CUDA's have the same bits.
inline float* stored(float* x) { return x; }
inline __nv_bfloat16* stored(c10::BFloat16* x) { return reinterpret_cast<__nv_bfloat16*>(x); }
inline __half* stored(c10::Half* x) { return reinterpret_cast<__half*>(x); }
template <class A>
const auto* stored(const A* x) {
  return stored(const_cast<A*>(x));
}

}  // namespace tutti
