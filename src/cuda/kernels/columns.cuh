// A pass over an array in which a thread stays with its columns: it keeps what belongs to them (a
// bias) in registers and can sum over its rows on the way. Every elementwise kernel is such a pass.
//   - A block is kRowThreads warps; a warp takes kWarp * kLanes columns of one row at a time.
//   - Blocks along y take one chunk of rows each; row r of a chunk belongs to warp r % kRowThreads.
//   - The sum of a chunk adds each warp's rows in order, then the warps in order. Chunk, row and
//     warp depend on the shape and A alone, so packs and single elements (kLanes = 1) give the same
//     bits.
//
// A Pass is a value with
//   kLanes, kSums   columns of a thread; how many sums over rows it makes of each
//   Own, Input      what a thread keeps of its columns; what it reads of one row
//   own(column), load(row, column, own)
//   run(input, own, row, column, factors, sums)   computes, stores, adds to sums[kSums][kLanes]
//   place(sum, column)   where a thread's sums go in a row of the partials; negative: nowhere
#pragma once

#include "cuda/kernels/common.cuh"

namespace tutti::rows {

constexpr int kRowThreads = 8;

/// How the rows are cut: into enough blocks for any GPU, in chunks that are long enough for their
/// partial sums to cost little. It does not depend on the GPU, so the bits do not either.
struct Chunks {
  int64_t count, rows;  ///< of a chunk
};
template <class A>
Chunks chunks_of(int64_t rows, int64_t cols) {
  constexpr int64_t kBlocks = 1024, kLeastRows = 4 * kRowThreads;
  const int64_t wanted = pieces_of(kBlocks, pieces_of(cols, kWarp * kVector<A>));
  const int64_t each = std::max(pieces_of(rows, wanted), kLeastRows);
  return {pieces_of(rows, each), each};
}

/// Takes the place of a KeyedMask in a pass without dropout.
struct NoMask {
  static constexpr int kMostRowsAtOnce = 4;
  template <int n>
  struct Drawn {
    __device__ Drawn(const NoMask&, int64_t) {}
    __device__ void draw(int64_t, float (&)[n]) {}
  };
};

/// Rows that a thread reads before it uses the first: 64 bytes in flight keep the memory busy, and
/// more registers would cost warps.
template <class Pass>
constexpr int kRowsOf64Bytes =
    (64 + sizeof(typename Pass::Input) - 1) / sizeof(typename Pass::Input);
template <class Pass, class Mask>
constexpr int kRowsAtOnce = Pass::kLanes == 1                              ? 2
                            : kRowsOf64Bytes<Pass> < Mask::kMostRowsAtOnce ? kRowsOf64Bytes<Pass>
                                                                           : Mask::kMostRowsAtOnce;

template <class Pass, class Mask>
__global__ void __launch_bounds__(kWarp* kRowThreads)
    column_pass(const Pass pass, const Mask mask, float* partials, int64_t width, int64_t rows,
                int64_t cols, int64_t chunk_rows) {
  constexpr int n = Pass::kLanes, kAtOnce = kRowsAtOnce<Pass, Mask>;
  const int64_t column = (int64_t{blockIdx.x} * kWarp + threadIdx.x) * n;
  const bool inside = column < cols;
  const int64_t begin = int64_t{blockIdx.y} * chunk_rows, end = min(begin + chunk_rows, rows);

  // Threads past the last column read and store nothing, but stay: masks are drawn by whole warps.
  typename Pass::Own own;
  if (inside) own = pass.own(column);
  typename Mask::template Drawn<n> drawn(mask, column);
  float sums[Pass::kSums > 0 ? Pass::kSums : 1][n] = {};

  for (int64_t row = begin + threadIdx.y; row < end; row += kRowThreads * kAtOnce) {
    typename Pass::Input input[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (inside && row + i * kRowThreads < end)
        input[i] = pass.load(row + i * kRowThreads, column, own);
    }

#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (row + i * kRowThreads >= end) break;
      float factors[n];
      drawn.draw(row + i * kRowThreads, factors);  // drawn by the whole warp
      if (inside) pass.run(input[i], own, row + i * kRowThreads, column, factors, sums);
    }
  }

  if constexpr (Pass::kSums > 0) {
    if (partials == nullptr) return;

    // The warps' sums are added in shared memory, in their order; kWarp + 1 keeps the threads'
    // elements in different banks.
    __shared__ float of_warps[kRowThreads][n * (kWarp + 1)];
#pragma unroll
    for (int s = 0; s < Pass::kSums; ++s) {
#pragma unroll
      for (int i = 0; i < n; ++i) of_warps[threadIdx.y][i * (kWarp + 1) + threadIdx.x] = sums[s][i];
      __syncthreads();
      for (int k = threadIdx.y * kWarp + threadIdx.x; k < n * kWarp; k += kWarp * kRowThreads) {
        // The first column of thread k / n, whose element k % n this is.
        const int64_t first = (int64_t{blockIdx.x} * kWarp + k / n) * n;
        const int64_t place = first < cols ? pass.place(s, first) : -1;
        if (place < 0) continue;
        float sum = of_warps[0][k % n * (kWarp + 1) + k / n];
#pragma unroll
        for (int w = 1; w < kRowThreads; ++w) sum += of_warps[w][k % n * (kWarp + 1) + k / n];
        partials[blockIdx.y * width + place + k % n] = sum;
      }
      __syncthreads();
    }
  }
}

/// Puts the pass over [rows, cols] on the queue. width is that of the partials, which may be null.
template <class Pass, class Mask>
void launch_columns(Queue& queue, const char* name, const Pass& pass, const Mask& mask,
                    float* partials, int64_t width, int64_t rows, int64_t cols,
                    const Chunks& chunks) {
  if (rows == 0 || cols == 0) return;
  const dim3 blocks(static_cast<unsigned>(pieces_of(cols, kWarp * Pass::kLanes)),
                    static_cast<unsigned>(chunks.count));
  column_pass<<<blocks, dim3(kWarp, kRowThreads), 0, queue.stream>>>(pass, mask, partials, width,
                                                                     rows, cols, chunks.rows);
  check_launch(name);
}

/// A pass without sums.
template <class A, class Pass, class Mask>
void launch_columns(Queue& queue, const char* name, const Pass& pass, const Mask& mask,
                    int64_t rows, int64_t cols) {
  launch_columns(queue, name, pass, mask, nullptr, 0, rows, cols, chunks_of<A>(rows, cols));
}

/// A pass whose sums become `sums` [width]; null: they are not wanted. cols is that of the pass,
/// chunks are those of the array.
template <class Pass, class Mask>
void launch_with_sums(Queue& queue, const char* name, const Pass& pass, const Mask& mask,
                      float* sums, int64_t width, int64_t rows, int64_t cols,
                      const Chunks& chunks) {
  float* partials = sums == nullptr ? nullptr : take_floats(queue, chunks.count * width);
  launch_columns(queue, name, pass, mask, partials, width, rows, cols, chunks);
  if (sums != nullptr) add_partials(queue, partials, chunks.count, sums, width, nullptr, 0);
}

}  // namespace tutti::rows
