// How a norm's row is spread over threads.
//   - A row is cut into packs of 16 bytes; pack p belongs to thread p % kThreads of the row.
//   - kThreads is a warp (a block then has four rows) or a whole block. kPacks is the most packs
//     that a thread holds in registers; 0 stands for rows that are too long for that and are read
//     again instead.
// Both follow from the number of packs alone, so sums run in one order whether or not the packs
// are aligned.
#pragma once

#include "cuda/kernels/common.cuh"

namespace tutti::rows {

template <int threads, int packs>
struct Layout {
  static constexpr int kThreads = threads, kPacks = packs;
  /// kBlock threads work on kRows rows at once
  static constexpr int kBlock = threads == kWarp ? 4 * kWarp : threads, kRows = kBlock / threads;
};

/// Calls body with the Layout for rows of `cols` elements. Arrays that are not aligned have fewer
/// layouts, to compile fewer kernels; lanes without a pack add zeros, so the bits are the same.
template <class A, bool whole, class Body>
void with_layout(int64_t cols, Body&& body) {
  const int64_t packs = pieces_of(cols, kVector<A>);
  if constexpr (whole) {
    if (packs <= kWarp) return body(Layout<kWarp, 1>{});
    if (packs <= 3 * kWarp) return body(Layout<kWarp, 3>{});
  }
  if (packs <= 4 * kWarp) return body(Layout<kWarp, 4>{});
  if (packs <= 256) return body(Layout<128, 2>{});
  if (packs <= 1024) return body(Layout<256, 4>{});
  body(Layout<256, 0>{});
}

/// Calls body(index in registers, column) for each pack of the thread.
template <class A, class L, class Body>
__device__ void for_packs(int thread, int64_t cols, Body&& body) {
  if constexpr (L::kPacks > 0) {
#pragma unroll
    for (int p = 0; p < L::kPacks; ++p) {
      const int64_t column = int64_t{p * L::kThreads + thread} * kVector<A>;
      if (column < cols) body(p, column);
    }
  } else {
    for (int64_t column = int64_t{thread} * kVector<A>; column < cols;
         column += L::kThreads * kVector<A>) {
      body(0, column);
    }
  }
}

/// Loads a pack of the row that begins at `row`: all of it, or up to the row's end.
template <bool whole, class T, int n>
__device__ void load_pack(Pack<T, n>& pack, const T* row, int64_t column, int64_t cols) {
  if constexpr (whole) {
    pack.load(row + column);
  } else {
    pack.load_some(row + column, cols - column);
  }
}
template <bool whole, int n>
__device__ void load_values(float (&values)[n], const float* row, int64_t column, int64_t cols) {
  Pack<float, n> pack;
  load_pack<whole>(pack, row, column, cols);
  pack.get(values);
}
template <bool whole, class A, int n>
__device__ void store_values(const float (&values)[n], A* row, int64_t column, int64_t cols) {
  Pack<A, n> pack;
  pack.set(values);
  if constexpr (whole) {
    pack.store(row + column);
  } else {
    pack.store_some(row + column, cols - column);
  }
}

}  // namespace tutti::rows
