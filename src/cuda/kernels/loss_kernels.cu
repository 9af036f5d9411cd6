// Softmax cross-entropy, one block per row, in float32. The file is long because forward, backward,
// their fusion and the slices of a vocabulary share one way through a row.
//   threads   A block has 256, or 1024 for rows of 4096 columns and more.
//   forward   A thread takes pieces of 16 bytes, as far apart as the block is wide, with a running
//             maximum and the sum of exponentials relative to it; these are joined over a warp as a
//             tree, then over the warps as another. The rows' losses are kept, and one block adds
//             them as doubles: every thread its rows in order, then a tree over the threads.
//   backward  One pass over the pieces.
//   in place  Both. Where two rows fit into the shared memory of a multiprocessor, one block on
//             each goes from row to row: it computes on one in shared memory while the next is on
//             its way there, so that a row crosses the device's memory once in each direction.
//             Else one block per row reads it twice.
// A piece that is not whole or not aligned is read element by element in the same order, which
// gives the same bits. 16-bit logits take the hardware's exponential, whose errors (1e-7 of the
// largest logit) vanish in their gradient's rounding: with the exact one the kernels would wait for
// their arithmetic, not for the memory.
#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "cuda/errors.h"
#include "cuda/kernels/common.cuh"
#include "cuda/kernels/loss_kernels.h"

namespace tutti {

namespace {

using rows::kVector;
using rows::kWarp;
using rows::Pack;
using rows::widen;

constexpr int kSumThreads = 1024, kStatistics = 3, kJoinThreads = 256, kWideThreads = 1024;
constexpr int64_t kWide = 4096;        // columns
constexpr int64_t kAnyId = INT64_MAX;  // ids of a vocabulary that is known in part

/// The sum of exp(x - top) over some elements, with top the largest of them (an online softmax).
/// top starts at a finite value, so that infinity is subtracted from itself only if the row
/// holds one.
template <class A>
struct Exponentials {
  // Half of bfloat16's least number: times log2(e) it is still finite.
  float top = sizeof(A) == 2 ? -1.7e38f : -FLT_MAX, sum = 0;
};

/// 2^x, zero below the smallest normal number.
__device__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// e^(x - top) for many x and one top.
template <class A>
class Below {
 public:
  __device__ explicit Below(float top) : top_(sizeof(A) == 2 ? -top * kLog2e : top) {}
  __device__ float operator()(float x) const {
    if constexpr (sizeof(A) == 2) return fast_exp2(fmaf(x, kLog2e, top_));
    return expf(x - top_);
  }

 private:
  static constexpr float kLog2e = 1.44269504088896341f;
  float top_;
};

/// e^x, exactly 1 for 0: for the factors of sums, where errors would add up.
template <class A>
__device__ float exponential(float x) {
  return sizeof(A) == 2 ? __expf(x) : expf(x);
}

/// Both sums relative to the larger top. A tree of these is the block's sum.
template <class A>
__device__ Exponentials<A> join(const Exponentials<A>& a, const Exponentials<A>& b) {
  const float top = fmaxf(a.top, b.top);
  return {top, a.sum * exponential<A>(a.top - top) + b.sum * exponential<A>(b.top - top)};
}

/// Joins each kLanes neighbouring lanes of a warp.
template <int kLanes, class A>
__device__ Exponentials<A> join_lanes(Exponentials<A> own) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    own = join(own, Exponentials<A>{__shfl_xor_sync(0xffffffffu, own.top, step),
                                    __shfl_xor_sync(0xffffffffu, own.sum, step)});
  }
  return own;
}

/// Calls body with the number of a block's threads as a type.
template <class Body>
void with_threads(int64_t cols, Body&& body) {
  if (cols < kWide) return body(std::integral_constant<int, 256>{});
  body(std::integral_constant<int, kWideThreads>{});
}

__device__ bool is_target(int64_t target, int64_t cols) { return target >= 0 && target < cols; }

template <class A>
using Piece = Pack<A, kVector<A>>;

/// A row in the device's memory. `whole`: it is read in aligned pieces, and ends with one.
template <class A>
struct Row {
  const A* x;
  int64_t cols;
  bool whole;
  __device__ Piece<A> load(int64_t first) const {
    Piece<A> piece;
    if (whole) {
      piece.load(x + first);
    } else {
      piece.load_some(x + first, cols - first);
    }
    return piece;
  }
};

/// A row of whole pieces in shared memory.
template <class A>
struct SharedRow {
  const Piece<A>* pieces;
  int64_t cols;
  static constexpr bool whole = true;
  __device__ Piece<A> load(int64_t first) const {
    return pieces[static_cast<int>(first) / kVector<A>];
  }
};

/// The exponentials of a whole row; the result is valid in a block's thread 0. Contains a barrier.
template <int kThreads, class A, template <class> class From>
__device__ Exponentials<A> row_exponentials(const From<A>& x) {
  constexpr int n = kVector<A>;
  const int64_t cols = x.cols;
  Exponentials<A> own;
  for (int64_t first = int64_t{threadIdx.x} * n; first < cols; first += kThreads * n) {
    // Elements past the row's end count as e^-infinity = 0. The sum so far is brought to the
    // new top.
    float values[n];
    x.load(first).get(values);
    float top = own.top;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!x.whole && i >= cols - first) values[i] = -INFINITY;
      top = fmaxf(top, values[i]);
    }
    const Below<A> below(top);
    float sum = own.sum * exponential<A>(own.top - top);
#pragma unroll
    for (int i = 0; i < n; ++i) sum += below(values[i]);
    own = {top, sum};
  }

  // One value per warp goes through shared memory, and the first warp joins these.
  own = join_lanes<kWarp>(own);
  __shared__ float tops[kThreads / kWarp], sums[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) {
    tops[threadIdx.x / kWarp] = own.top;
    sums[threadIdx.x / kWarp] = own.sum;
  }
  __syncthreads();
  constexpr int kWarps = kThreads / kWarp;
  if (threadIdx.x < kWarp) {
    own = threadIdx.x < kWarps ? Exponentials<A>{tops[threadIdx.x], sums[threadIdx.x]}
                               : Exponentials<A>{};
    own = join_lanes<kWarps>(own);
  }
  return own;
}

/// Returns the log-sum-exp of row x, valid in a block's thread 0, which also writes the row's loss.
/// logits is the same row, before anything overwrites it.
template <int kThreads, class A, template <class> class From>
__device__ float row_loss(const From<A>& x, const A* logits, int64_t target, double* loss) {
  const Exponentials<A> own = row_exponentials<kThreads>(x);
  const float lse = own.top + logf(own.sum);
  if (threadIdx.x == 0)
    *loss = is_target(target, x.cols) ? double{lse} - double{widen(logits[target])} : 0;
  return lse;
}

template <class A, int kThreads>
__global__ void __launch_bounds__(kThreads)
    row_losses(const A* logits, const int64_t* targets, float* lse, double* losses, int64_t cols,
               bool whole) {
  const int64_t row = blockIdx.x;
  const A* const x = logits + row * cols;
  const float row_lse = row_loss<kThreads>(Row<A>{x, cols, whole}, x, targets[row], losses + row);
  if (threadIdx.x == 0) lse[row] = row_lse;
}

/// A slice's part of the loss: the three numbers of VocabularyKernelsFor::statistics for
/// each row.
template <class A, int kThreads>
__global__ void __launch_bounds__(kThreads)
    row_statistics(const A* logits, const int64_t* targets, float* statistics, int64_t first,
                   int64_t cols, bool whole) {
  const int64_t row = blockIdx.x, target = targets[row] - first;
  const A* const x = logits + row * cols;
  const Exponentials<A> own = row_exponentials<kThreads>(Row<A>{x, cols, whole});
  if (threadIdx.x != 0) return;
  float* const of_row = statistics + row * kStatistics;
  of_row[0] = own.top;
  of_row[1] = own.sum;
  of_row[2] = is_target(target, cols) ? widen(x[target]) : 0;
}

/// One thread joins a row's statistics in the order of the slices, in float64.
__global__ void __launch_bounds__(kJoinThreads)
    join_statistics(const float* statistics, const int64_t* targets, float* lse, double* losses,
                    int64_t rows, int64_t slices) {
  const int64_t row = int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (row >= rows) return;
  const auto of = [&](int64_t slice, int which) {
    return double{statistics[(slice * rows + row) * kStatistics + which]};
  };

  // Every slice's sum is relative to its own top; all are brought to the largest.
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

/// One block adds all rows, in an order that depends on their number alone.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses(const double* losses, const int64_t* targets, double* result, int64_t rows,
               int64_t ids) {
  double loss = 0, count = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += losses[row];
    count += is_target(targets[row], ids) ? 1 : 0;
  }

  // A tree over the threads: each level needs the one before, hence the barrier at its start.
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

/// The gradient of a row x, written to dx, which may be where x is stored. target is a column, or
/// any other number where the target is in another slice; counts: the row has a target at all.
template <int kThreads, class A, template <class> class From>
__device__ void row_gradient(const From<A>& x, A* dx, int64_t target, bool counts, float lse,
                             const double* scale) {
  constexpr int n = kVector<A>;
  const int64_t cols = x.cols;
  const float factor = scale ? static_cast<float>(*scale) : 1.f;
  const Below<A> below(lse);
  for (int64_t first = int64_t{threadIdx.x} * n; first < cols; first += kThreads * n) {
    float values[n];
    x.load(first).get(values);

    // Almost all pieces take the last branch: they neither are zero nor hold the target.
    const int64_t within = target - first;
    if (!counts) {
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] = 0;
    } else if (within >= 0 && within < n) {
#pragma unroll
      for (int i = 0; i < n; ++i)
        values[i] = (below(values[i]) - (within == i ? 1.f : 0.f)) * factor;
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] = below(values[i]) * factor;
    }
    // A thread has read its piece before it writes it, so dx may be x.
    Pack<A, n> pack;
    pack.set(values);
    if (x.whole) {
      pack.store(dx + first);
    } else {
      pack.store_some(dx + first, cols - first);
    }
  }
}

/// The columns are the ids from first_id on, out of `ids` in all.
template <class A, int kThreads>
__global__ void __launch_bounds__(kThreads)
    row_gradients(const A* logits, const int64_t* targets, const float* lse, const double* scale,
                  A* dlogits, int64_t first_id, int64_t ids, int64_t cols, bool whole) {
  const int64_t row = blockIdx.x, target = targets[row];
  row_gradient<kThreads>(Row<A>{logits + row * cols, cols, whole}, dlogits + row * cols,
                         target - first_id, is_target(target, ids), lse[row], scale);
}

/// In place, with each row read twice; the second time it is likely in a cache. The bound of
/// 2048 threads per multiprocessor limits the registers so that all of them fit.
template <class A, int kThreads>
__global__ void __launch_bounds__(kThreads, 2048 / kThreads)
    row_losses_and_gradients(A* logits, const int64_t* targets, const double* scale, double* losses,
                             int64_t cols, bool whole) {
  const int64_t row = blockIdx.x, target = targets[row];
  A* const x = logits + row * cols;
  __shared__ float lse;
  const Row<A> own{x, cols, whole};
  const float row_lse = row_loss<kThreads>(own, x, target, losses + row);
  if (threadIdx.x == 0) lse = row_lse;
  __syncthreads();
  row_gradient<kThreads>(own, x, target, is_target(target, cols), lse, scale);
}

/// In place, for rows of whole pieces; a block takes row blockIdx.x and every gridDim.x-th after
/// it. A thread copies the pieces that it will read itself, so it waits for its own copies alone.
template <class A, int kThreads>
__global__ void __launch_bounds__(kThreads)
    streamed_losses_and_gradients(A* logits, const int64_t* targets, const double* scale,
                                  double* losses, int64_t rows, int64_t cols) {
  extern __shared__ uint4 shared[];
  const int pieces = static_cast<int>(cols / kVector<A>);

  // A group is committed even where no row is left, so that "all but the last group" always means
  // the current row.
  const auto fetch = [&](int64_t row, uint4* to) {
    const uint4* const from = reinterpret_cast<const uint4*>(logits + row * cols);
    if (row < rows)
      for (int p = threadIdx.x; p < pieces; p += kThreads)
        __pipeline_memcpy_async(to + p, from + p, sizeof(uint4));
    __pipeline_commit();
  };

  __shared__ float lse;
  uint4 *here = shared, *there = shared + pieces;
  fetch(blockIdx.x, here);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    fetch(row + gridDim.x, there);
    __pipeline_wait_prior(1);
    A* const x = logits + row * cols;
    const int64_t target = targets[row];
    const SharedRow<A> own{reinterpret_cast<const Piece<A>*>(here), cols};
    // The target's logit may have been copied by another thread: it is there after the barrier
    // inside row_loss, before which each thread waited for its copies.
    const float row_lse =
        row_loss<kThreads>(own, reinterpret_cast<const A*>(here), target, losses + row);
    if (threadIdx.x == 0) lse = row_lse;
    __syncthreads();
    row_gradient<kThreads>(own, x, target, is_target(target, cols), lse, scale);

    // Each thread is done with its own pieces of `here`, and only it will refill them.
    uint4* const done = here;
    here = there;
    there = done;
  }
}

/// An attribute of the calling thread's current GPU.
int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  TUTTI_CUDA_CALL(cudaGetDevice, &device);
  TUTTI_CUDA_CALL(cudaDeviceGetAttribute, &value, which, device);
  return value;
}

}  // namespace

template <class A>
void launch_cross_entropy(const A* logits, const int64_t* targets, float* lse, double* losses,
                          double* result, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (rows > 0) {
    with_threads(cols, [&]<class Threads>(Threads) {
      row_losses<A, Threads::value><<<static_cast<unsigned>(rows), Threads::value, 0, stream>>>(
          logits, targets, lse, losses, cols, ::tutti::rows::whole_packs<A>(cols, {logits}));
    });
    check_launch("cross_entropy");
  }
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, result, rows, cols);
  check_launch("cross_entropy's sum");
}

template <class A>
void launch_cross_entropy_in_place(A* logits, const int64_t* targets, const double* scale,
                                   double* losses, double* result, int64_t rows, int64_t cols,
                                   cudaStream_t stream) {
  const bool whole = ::tutti::rows::whole_packs<A>(cols, {logits});
  constexpr int64_t kOwnShared = 1024;  // the most that the kernel takes without the rows
  const int64_t two_rows = 2 * cols * static_cast<int64_t>(sizeof(A));

  // One resident block per multiprocessor, if two rows fit next to the kernel's own shared memory.
  if (rows > 0 && whole && cols >= kWide &&
      two_rows + kOwnShared <= attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    const auto kernel = streamed_losses_and_gradients<A, kWideThreads>;
    TUTTI_CUDA_CALL(cudaFuncSetAttribute, kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                    static_cast<int>(two_rows));
    const int64_t blocks = std::min<int64_t>(rows, attribute(cudaDevAttrMultiProcessorCount));
    kernel<<<static_cast<unsigned>(blocks), kWideThreads, static_cast<size_t>(two_rows), stream>>>(
        logits, targets, scale, losses, rows, cols);
    check_launch("cross_entropy_in_place");
  } else if (rows > 0) {
    // Rows that are short, long or not aligned are read twice.
    with_threads(cols, [&]<class Threads>(Threads) {
      row_losses_and_gradients<A, Threads::value>
          <<<static_cast<unsigned>(rows), Threads::value, 0, stream>>>(logits, targets, scale,
                                                                       losses, cols, whole);
    });
    check_launch("cross_entropy_in_place");
  }

  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, result, rows, cols);
  check_launch("cross_entropy's sum");
}

template <class A>
void launch_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse,
                                   const double* scale, A* dlogits, int64_t rows, int64_t cols,
                                   cudaStream_t stream) {
  if (rows == 0 || cols == 0) return;
  with_threads(cols, [&]<class Threads>(Threads) {
    row_gradients<A, Threads::value><<<static_cast<unsigned>(rows), Threads::value, 0, stream>>>(
        logits, targets, lse, scale, dlogits, 0, cols, cols,
        ::tutti::rows::whole_packs<A>(cols, {logits, dlogits}));
  });
  check_launch("cross_entropy_backward");
}

template <class A>
void launch_statistics(const A* logits, const int64_t* targets, float* statistics, int64_t rows,
                       int64_t first, int64_t count, cudaStream_t stream) {
  if (rows == 0) return;
  with_threads(count, [&]<class Threads>(Threads) {
    row_statistics<A, Threads::value><<<static_cast<unsigned>(rows), Threads::value, 0, stream>>>(
        logits, targets, statistics, first, count, ::tutti::rows::whole_packs<A>(count, {logits}));
  });
  check_launch("statistics");
}

void launch_joined_cross_entropy(const float* statistics, const int64_t* targets, float* lse,
                                 double* losses, double* result, int64_t rows, int64_t slices,
                                 cudaStream_t stream) {
  if (rows > 0) {
    join_statistics<<<static_cast<unsigned>(::tutti::rows::pieces_of(rows, kJoinThreads)),
                      kJoinThreads, 0, stream>>>(statistics, targets, lse, losses, rows, slices);
    check_launch("cross_entropy of slices");
  }
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, result, rows, kAnyId);
  check_launch("cross_entropy's sum");
}

template <class A>
void launch_slice_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse,
                                         const double* scale, A* dlogits, int64_t rows,
                                         int64_t first, int64_t count, cudaStream_t stream) {
  if (rows == 0 || count == 0) return;
  with_threads(count, [&]<class Threads>(Threads) {
    row_gradients<A, Threads::value><<<static_cast<unsigned>(rows), Threads::value, 0, stream>>>(
        logits, targets, lse, scale, dlogits, first, kAnyId, count,
        ::tutti::rows::whole_packs<A>(count, {logits, dlogits}));
  });
  check_launch("cross_entropy_backward of a slice");
}

#define TUTTI_INSTANCE(A)                                                                          \
  template void launch_cross_entropy(const A*, const int64_t*, float*, double*, double*, int64_t,  \
                                     int64_t, cudaStream_t);                                       \
  template void launch_cross_entropy_in_place(A*, const int64_t*, const double*, double*, double*, \
                                              int64_t, int64_t, cudaStream_t);                     \
  template void launch_cross_entropy_backward(const A*, const int64_t*, const float*,              \
                                              const double*, A*, int64_t, int64_t, cudaStream_t);  \
  template void launch_statistics(const A*, const int64_t*, float*, int64_t, int64_t, int64_t,     \
                                  cudaStream_t);                                                   \
  template void launch_slice_cross_entropy_backward(const A*, const int64_t*, const float*,        \
                                                    const double*, A*, int64_t, int64_t, int64_t,  \
                                                    cudaStream_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti
