// What the row kernels share: packs of 16 bytes, conversions to and from float32, and sums over the
// threads of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "cuda/errors.h"
#include "cuda/launch.h"

namespace tutti::rows {

constexpr int kWarp = 32;
/// Elements of A in 16 bytes.
template <class A>
constexpr int kVector = 16 / sizeof(A);

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <class A>
__device__ A narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

/// n elements as they are in memory: whole pieces of 16 bytes, at addresses that are multiples of
/// 16, so that a thread moves each with one instruction.
template <class A, int n>
struct Pack {
  static constexpr int kPieces = n * sizeof(A) / 16;
  static_assert(kPieces * 16 == n * sizeof(A));
  uint4 pieces[kPieces];

  __device__ void load(const A* from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ void store(A* to) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) reinterpret_cast<uint4*>(to)[i] = pieces[i];
  }
  /// The first `count` elements, from and to any address; the rest count as zeros.
  __device__ void load_some(const A* from, int64_t count) {
    A elements[n];
#pragma unroll
    for (int i = 0; i < n; ++i) elements[i] = i < count ? from[i] : narrow<A>(0);
    std::memcpy(pieces, elements, sizeof(pieces));
  }
  __device__ void store_some(A* to, int64_t count) const {
    A elements[n];
    std::memcpy(elements, pieces, sizeof(pieces));
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (i < count) to[i] = elements[i];
    }
  }

  // Kernels compute in float32: elements are widened after a load and rounded before a store.
  __device__ void get(float (&to)[n]) const {
    A elements[n];
    std::memcpy(elements, pieces, sizeof(pieces));
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = widen(elements[i]);
  }
  __device__ void set(const float (&from)[n]) {
    A elements[n];
#pragma unroll
    for (int i = 0; i < n; ++i) elements[i] = narrow<A>(from[i]);
    std::memcpy(pieces, elements, sizeof(pieces));
  }
};

/// One element at any address, for arrays that are not aligned. It computes the same bits.
template <class A>
struct Pack<A, 1> {
  A element;

  __device__ void load(const A* from) { element = *from; }
  __device__ void store(A* to) const { *to = element; }
  __device__ void get(float (&to)[1]) const { to[0] = widen(element); }
  __device__ void set(const float (&from)[1]) { element = narrow<A>(from[0]); }
};

template <class A, int n>
__device__ void store_as(A* to, const float (&values)[n]) {
  Pack<A, n> pack;
  pack.set(values);
  pack.store(to);
}

/// The elements from `column` on, or zeros where the array is null.
template <int n>
__device__ void load_or_zero(const float* array, int64_t column, float (&to)[n]) {
  if (array == nullptr) {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = 0;
    return;
  }
  Pack<float, n> pack;
  pack.load(array + column);
  pack.get(to);
}

/// a / b and a % b of numbers that are not negative. Numbers that fit 32 bits take a tenth of
/// the instructions.
struct Division {
  int64_t quotient, rest;
};
__device__ inline Division divide(int64_t a, int64_t b) {
  if ((static_cast<uint64_t>(a | b) >> 32) == 0) {
    const auto small_a = static_cast<uint32_t>(a), small_b = static_cast<uint32_t>(b);
    const uint32_t quotient = small_a / small_b;
    return {quotient, small_a - quotient * small_b};
  }
  const int64_t quotient = a / b;
  return {quotient, a - quotient * b};
}

/// The sum over a warp, with the same bits in every lane: at each level both sides add the same
/// two numbers.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Two sums over the kThreads threads of a row, which all of them get. If these are more than a
/// warp, they are the whole block.
template <int kThreads>
__device__ float2 row_sums(float2 x) {
  x = {warp_sum(x.x), warp_sum(x.y)};
  if constexpr (kThreads > kWarp) {
    __shared__ float2 of_warps[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;

    __syncthreads();
    x = of_warps[0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarp; ++w) x = {x.x + of_warps[w].x, x.y + of_warps[w].y};

    __syncthreads();
  }
  return x;
}

constexpr int64_t pieces_of(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

/// Whether rows of `cols` elements can be read in packs, because all of these arrays are aligned (a
/// null array is).
template <class A>
bool whole_packs(int64_t cols, std::initializer_list<const void*> arrays) {
  if (cols % kVector<A> != 0) return false;
  for (const void* array : arrays) {
    if (reinterpret_cast<uintptr_t>(array) % 16 != 0) return false;
  }
  return true;
}

inline float* take_floats(Queue& queue, int64_t count) {
  return static_cast<float*>(queue.take(static_cast<size_t>(count) * sizeof(float)));
}

/// The second stage of sums over rows: partials [chunks, first_width + second_width] are added in
/// the order of the chunks. Either result may be null; without chunks the results are zeros.
void add_partials(Queue& queue, const float* partials, int64_t chunks, float* first,
                  int64_t first_width, float* second, int64_t second_width);

#define TUTTI_FOR_EACH_TYPE(MACRO) MACRO(float) MACRO(__nv_bfloat16) MACRO(__half)

}  // namespace tutti::rows
