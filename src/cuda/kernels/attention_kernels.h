// Launchers of Tutti's own attention kernels, for every type and for heads of up to 256 elements:
// they do what cuDNN does not take. Arithmetic is float32; lse is the natural logarithm.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/kernels.h"

struct __nv_bfloat16;
struct __half;

namespace tutti {

constexpr int64_t kLargestHead = 256;
/// The most samples, and the most heads: a grid's second and third dimension.
constexpr int64_t kMostSamples = 65535;

// A is float, __nv_bfloat16 or __half; arrays are as in kernels.h, none of them empty, within the
// limits above. The launchers throw Error where a GPU has too little shared memory: heads above 128
// need 139 KB of it.

template <class A>
void launch_attention(const A* qkv, A* out, float* lse, const AttentionShape& shape,
                      cudaStream_t stream);

/// delta: scratch, one float per element of lse.
template <class A>
void launch_attention_backward(const A* dout, const A* qkv, const A* out, const float* lse, A* dqkv,
                               float* delta, const AttentionShape& shape, cudaStream_t stream);

}  // namespace tutti
