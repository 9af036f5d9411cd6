// Softmax cross-entropy, one block of 256 threads for a row, in float32.
//   forward   a thread takes pieces of 16 bytes, 256 apart, with a running maximum and the sum of exponentials below
//             it; these are joined over a warp as a tree, then over the warps in order. The rows' losses are kept, and
//             one block adds them as doubles: every thread its rows in order, then a tree over the threads.
//   backward  a pass over the pieces
// A piece that is not whole or not aligned is read element by element, in the same order: the same bits.
#include <cfloat>
#include <cmath>

#include "cuda/errors.h"
#include "cuda/kernels/common.cuh"
#include "cuda/kernels/loss.h"

namespace tutti {

namespace {

using rows::kVector;
using rows::kWarp;
using rows::Pack;
using rows::widen;

constexpr int kThreads = 256, kSumThreads = 1024, kStatistics = 3;
constexpr int64_t kAnyId = INT64_MAX;  // of a vocabulary whose other slices are not here

/// The sum of exp(x - top) of some elements, with top the largest of them. Starting at a finite top leaves no infinity
/// to subtract from itself but one that stands in the row.
struct Exponentials {
  float top = -FLT_MAX, sum = 0;
};

__device__ Exponentials join(const Exponentials& a, const Exponentials& b) {
  const float top = fmaxf(a.top, b.top);
  return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
}

__device__ bool is_target(int64_t target, int64_t cols) { return target >= 0 && target < cols; }

/// `whole`: the array is read in aligned pieces, of which a row has no part.
template <class A>
__device__ void load_piece(const A* from, int64_t left, bool whole, float (&values)[kVector<A>]) {
  Pack<A, kVector<A>> pack;
  if (whole) {
    pack.load(from);
  } else {
    pack.load_some(from, left);
  }
  pack.get(values);
}

/// Of a row, in a block's thread 0.
template <class A>
__device__ Exponentials row_exponentials(const A* x, int64_t cols, bool whole) {
  constexpr int n = kVector<A>;
  Exponentials own;
  for (int64_t first = int64_t{threadIdx.x} * n; first < cols; first += kThreads * n) {
    float values[n];
    load_piece(x + first, cols - first, whole, values);
    float top = own.top;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!whole && i >= cols - first) values[i] = -INFINITY;
      top = fmaxf(top, values[i]);
    }
    float sum = own.sum * expf(own.top - top);
#pragma unroll
    for (int i = 0; i < n; ++i) sum += expf(values[i] - top);
    own = {top, sum};
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    own = join(own, {__shfl_xor_sync(0xffffffffu, own.top, step), __shfl_xor_sync(0xffffffffu, own.sum, step)});
  }
  __shared__ float tops[kThreads / kWarp], sums[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) {
    tops[threadIdx.x / kWarp] = own.top;
    sums[threadIdx.x / kWarp] = own.sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / kWarp; ++warp) own = join(own, {tops[warp], sums[warp]});
  }
  return own;
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    row_losses(const A* logits, const int64_t* targets, float* lse, double* losses, int64_t cols, bool whole) {
  const int64_t row = blockIdx.x;
  const A* const x = logits + row * cols;
  const Exponentials own = row_exponentials(x, cols, whole);
  if (threadIdx.x != 0) return;
  const float row_lse = own.top + logf(own.sum);
  const int64_t target = targets[row];
  lse[row] = row_lse;
  losses[row] = is_target(target, cols) ? double{row_lse} - double{widen(x[target])} : 0;
}

template <class A>
__global__ void __launch_bounds__(kThreads) row_statistics(const A* logits, const int64_t* targets, float* statistics,
                                                           int64_t first, int64_t cols, bool whole) {
  const int64_t row = blockIdx.x, target = targets[row] - first;
  const A* const x = logits + row * cols;
  const Exponentials own = row_exponentials(x, cols, whole);
  if (threadIdx.x != 0) return;
  float* const of_row = statistics + row * kStatistics;
  of_row[0] = own.top;
  of_row[1] = own.sum;
  of_row[2] = is_target(target, cols) ? widen(x[target]) : 0;
}

/// A thread joins a row's statistics in the order of the slices.
__global__ void __launch_bounds__(kThreads) join_statistics(const float* statistics, const int64_t* targets, float* lse,
                                                            double* losses, int64_t rows, int64_t slices) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  const auto of = [&](int64_t slice, int which) {
    return double{statistics[(slice * rows + row) * kStatistics + which]};
  };
  double top = of(0, 0);
  for (int64_t s = 1; s < slices; ++s) top = fmax(top, of(s, 0));
  double sum = 0, target = 0;
  for (int64_t s = 0; s < slices; ++s) {
    sum += of(s, 1) * exp(of(s, 0) - top);
    target += of(s, 2);
  }
  const double row_lse = top + log(sum);
  lse[row] = static_cast<float>(row_lse);
  losses[row] = targets[row] >= 0 ? row_lse - target : 0;
}

__global__ void __launch_bounds__(kSumThreads)
    sum_losses(const double* losses, const int64_t* targets, double* result, int64_t rows, int64_t ids) {
  double loss = 0, count = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += losses[row];
    count += is_target(targets[row], ids) ? 1 : 0;
  }
  __shared__ double of_threads[2][kSumThreads];
  of_threads[0][threadIdx.x] = loss;
  of_threads[1][threadIdx.x] = count;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      of_threads[0][threadIdx.x] += of_threads[0][threadIdx.x + half];
      of_threads[1][threadIdx.x] += of_threads[1][threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    result[0] = of_threads[0][0];
    result[1] = of_threads[1][0];
  }
}

/// Columns are the ids from first_id on, of `ids` in all.
template <class A>
__global__ void __launch_bounds__(kThreads)
    row_gradients(const A* logits, const int64_t* targets, const float* lse, const double* scale, A* dlogits,
                  int64_t first_id, int64_t ids, int64_t cols, bool whole) {
  constexpr int n = kVector<A>;
  const int64_t row = blockIdx.x, target = targets[row];
  const bool counts = is_target(target, ids);
  const float row_lse = lse[row], factor = scale ? static_cast<float>(*scale) : 1.f;
  for (int64_t first = int64_t{threadIdx.x} * n; first < cols; first += kThreads * n) {
    float values[n];
    load_piece(logits + row * cols + first, cols - first, whole, values);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float wanted = first_id + first + i == target ? 1.f : 0.f;
      values[i] = counts ? (expf(values[i] - row_lse) - wanted) * factor : 0.f;
    }
    Pack<A, n> pack;
    pack.set(values);
    if (whole) {
      pack.store(dlogits + row * cols + first);
    } else {
      pack.store_some(dlogits + row * cols + first, cols - first);
    }
  }
}

}  // namespace

template <class A>
void launch_cross_entropy(const A* logits, const int64_t* targets, float* lse, double* losses, double* result,
                          int64_t rows, int64_t cols, cudaStream_t stream) {
  if (rows > 0) {
    row_losses<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(logits, targets, lse, losses, cols,
                                                                     ::tutti::rows::whole_packs<A>(cols, {logits}));
    check_launch("cross_entropy");
  }
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, result, rows, cols);
  check_launch("cross_entropy's sum");
}

template <class A>
void launch_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse, const double* scale,
                                   A* dlogits, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return;
  row_gradients<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      logits, targets, lse, scale, dlogits, 0, cols, cols, ::tutti::rows::whole_packs<A>(cols, {logits, dlogits}));
  check_launch("cross_entropy_backward");
}

template <class A>
void launch_statistics(const A* logits, const int64_t* targets, float* statistics, int64_t rows, int64_t first,
                       int64_t count, cudaStream_t stream) {
  if (rows == 0) return;
  row_statistics<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(logits, targets, statistics, first, count,
                                                                       ::tutti::rows::whole_packs<A>(count, {logits}));
  check_launch("statistics");
}

void launch_joined_cross_entropy(const float* statistics, const int64_t* targets, float* lse, double* losses,
                                 double* result, int64_t rows, int64_t slices, cudaStream_t stream) {
  if (rows > 0) {
    join_statistics<<<static_cast<unsigned>(::tutti::rows::pieces_of(rows, kThreads)), kThreads, 0, stream>>>(
        statistics, targets, lse, losses, rows, slices);
    check_launch("cross_entropy of slices");
  }
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, result, rows, kAnyId);
  check_launch("cross_entropy's sum");
}

template <class A>
void launch_slice_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse, const double* scale,
                                         A* dlogits, int64_t rows, int64_t first, int64_t count, cudaStream_t stream) {
  if (rows == 0 || count == 0) return;
  row_gradients<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      logits, targets, lse, scale, dlogits, first, kAnyId, count,
      ::tutti::rows::whole_packs<A>(count, {logits, dlogits}));
  check_launch("cross_entropy_backward of a slice");
}

#define TUTTI_INSTANCE(A)                                                                                         \
  template void launch_cross_entropy(const A*, const int64_t*, float*, double*, double*, int64_t, int64_t,        \
                                     cudaStream_t);                                                               \
  template void launch_cross_entropy_backward(const A*, const int64_t*, const float*, const double*, A*, int64_t, \
                                              int64_t, cudaStream_t);                                             \
  template void launch_statistics(const A*, const int64_t*, float*, int64_t, int64_t, int64_t, cudaStream_t);     \
  template void launch_slice_cross_entropy_backward(const A*, const int64_t*, const float*, const double*, A*,    \
                                                    int64_t, int64_t, int64_t, cudaStream_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti
