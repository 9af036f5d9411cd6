// Folds, sums of squares, the commit of a step and casts. Every sum runs in one fixed order:
//   fold            element by element the additions of the order, as comm/fold.cc makes them
//   chunk_squares   one warp per chunk: element i goes to lane i % 32, in order; lanes are folded
//                   in halves. comm/fold.simd.cc has the same accumulators: the same bits
//   commit          one block: a unit's chunks go to threads at a stride, which are then added in
//                   halves; units in order; losses and counts strictly in order
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/cuda_state.h"
#include "cuda/errors.h"

namespace tutti {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // loads in flight
constexpr int kWarp = 32;
constexpr int kCommitThreads = 1024;

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

unsigned blocks_of(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

/// Calls body(i) for this thread's elements of n: kPerThread of its block's tile, at a stride that
/// keeps loads coalesced.
template <class Body>
__device__ __forceinline__ void for_elements(int64_t n, Body body) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kPerThread) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < n) body(i);
  }
}

struct FourTerms {
  const float* term[4];
};

/// The shapes of trees that have kernels of their own: those of 2 to 4 terms.
enum class Tree { kPair, kLeft3, kRight3, kBalanced4 };

template <Tree kTree>
__global__ void __launch_bounds__(kThreads) fold_tree(float* out, FourTerms terms, int64_t n) {
  for_elements(n, [&](int64_t i) {
    const auto at = [&](int t) { return terms.term[t][i]; };
    if constexpr (kTree == Tree::kPair) out[i] = at(0) + at(1);
    if constexpr (kTree == Tree::kLeft3) out[i] = (at(0) + at(1)) + at(2);
    if constexpr (kTree == Tree::kRight3) out[i] = at(0) + (at(1) + at(2));
    if constexpr (kTree == Tree::kBalanced4) out[i] = (at(0) + at(1)) + (at(2) + at(3));
  });
}

/// Any other fold, passed by value as a kernel's argument: the terms, and the pairs that are added.
template <int kTerms>
struct FoldProgram {
  const float* term[kTerms];
  uint16_t left[kTerms], right[kTerms];
  int count;
};

/// One element per thread, with its accumulators in the thread's local memory.
template <int kTerms>
__global__ void __launch_bounds__(kThreads)
    fold_any(float* out, const __grid_constant__ FoldProgram<kTerms> program, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  float sums[kTerms];
  for (int t = 0; t < program.count; ++t) sums[t] = program.term[t][i];
  for (int s = 0; s + 1 < program.count; ++s) sums[program.left[s]] += sums[program.right[s]];

  // The last addition leaves the whole sum in its left accumulator.
  out[i] = sums[program.left[program.count - 2]];
}

template <int kTerms>
void launch_any(cudaStream_t stream, float* out, std::span<const float* const> terms,
                std::span<const FoldStep> order, int64_t n) {
  FoldProgram<kTerms> program{};
  program.count = static_cast<int>(terms.size());
  for (size_t t = 0; t < terms.size(); ++t) program.term[t] = terms[t];
  for (size_t s = 0; s < order.size(); ++s) {
    program.left[s] = static_cast<uint16_t>(order[s].left);
    program.right[s] = static_cast<uint16_t>(order[s].right);
  }
  fold_any<kTerms><<<blocks_of(n, kThreads), kThreads, 0, stream>>>(out, program, n);
}

bool is(std::span<const FoldStep> order, std::initializer_list<FoldStep> other) {
  if (order.size() != other.size()) return false;
  size_t s = 0;
  for (const FoldStep& step : other) {
    if (order[s].left != step.left || order[s].right != step.right) return false;
    ++s;
  }
  return true;
}

__global__ void __launch_bounds__(kThreads) add_into_kernel(float* a, const float* b, int64_t n) {
  for_elements(n, [&](int64_t i) { a[i] = a[i] + b[i]; });
}

__global__ void __launch_bounds__(kThreads)
    chunk_squares_kernel(const float* x, const StateChunk* chunks, int64_t count, double* votes) {
  const int64_t c = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (c >= count) return;  // a warp leaves as a whole
  const int lane = threadIdx.x % kWarp;
  const int64_t at = chunks[c].at;
  const int size = chunks[c].size;
  double sum = 0;
#pragma unroll 8
  for (int i = lane; i < size; i += kWarp) {
    const double value = x[at + i];
    sum = sum + value * value;
  }
  for (int half = kWarp / 2; half > 0; half /= 2)
    sum = sum + __shfl_down_sync(0xffffffffu, sum, half);
  if (lane == 0) votes[chunks[c].place] = sum;
}

/// Returns values[0] + values[1] + ..., added strictly in order, to all threads of the block. Each
/// of them makes all additions; only the loads are shared.
__device__ double sum_in_order(const double* values, int64_t n, double* shared) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kCommitThreads) {
    const int size = static_cast<int>(n - begin < kCommitThreads ? n - begin : kCommitThreads);
    __syncthreads();
    if (threadIdx.x < size) shared[threadIdx.x] = values[begin + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < size; ++i) sum = sum + shared[i];  // the same additions in every thread
  }
  return sum;
}

/// Returns the sum to all threads of the block: thread t adds elements t, t + kCommitThreads, ...,
/// then the threads are added in halves.
__device__ double sum_strided(const double* values, int64_t n, double* shared) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += kCommitThreads) sum = sum + values[i];
  __syncthreads();
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kCommitThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

/// The same as clip_factor of optim/optimizer.h.
__device__ double clip_factor_of(double norm, double clip) {
  if (clip == 0) return 1;
  const double factor = clip / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

/// Where in the votes these begin, worked out on the host.
struct VotePlaces {
  int64_t losses, counts, stop, saving;
};

/// One block, since every scale depends on all votes; the array is short.
__global__ void __launch_bounds__(kCommitThreads)
    commit_kernel(const double* votes, VoteLayout layout, VotePlaces places,
                  const StepInputs* inputs, StepOutcome* outcome) {
  __shared__ double shared[kCommitThreads];
  float* scales = reinterpret_cast<float*>(outcome + 1);
  const double clip = inputs->clip, loss_scale = inputs->loss_scale[0];
  const ClipBy clip_by = inputs->clip_by;
  const double loss = sum_in_order(votes + places.losses, layout.micro_batches, shared);
  const double targets = sum_in_order(votes + places.counts, layout.micro_batches, shared);

  // Gradients are sums over targets, and with the loss scale in them: both are divided out
  // here, once.
  const double divisor = targets > 0 ? targets : 1;
  const auto factor = [&](double squares) {
    return clip_factor_of(sqrt(squares) / divisor / loss_scale, clip);
  };
  const auto scale = [&](double by) { return static_cast<float>(by / divisor / loss_scale); };

  // The norm of each unit clips its own gradients with kUnit; else the norm of all units clips all.
  double squares = 0;
  for (int u = 0; u < layout.units; ++u) {
    const int64_t begin = layout.unit_chunks[u], end = layout.unit_chunks[u + 1];
    const double of_unit = begin == end ? 0 : sum_strided(votes + begin, end - begin, shared);
    squares = squares + of_unit;
    if (clip_by == ClipBy::kUnit && threadIdx.x == 0) scales[u] = scale(factor(of_unit));
  }
  if (clip_by != ClipBy::kUnit) {
    const float common = scale(clip_by == ClipBy::kNorm ? factor(squares) : 1);
    for (int u = threadIdx.x; u < layout.units; u += kCommitThreads) scales[u] = common;
  }

  // Everything that must be finite before anything is written is in these three sums.
  if (threadIdx.x != 0) return;
  outcome->loss = loss;
  outcome->targets = targets;
  outcome->squares = squares;
  outcome->stop = votes[places.stop];
  outcome->saving = votes[places.saving];
  outcome->finite = isfinite(loss) && isfinite(targets) && isfinite(squares) ? 1 : 0;
  outcome->reserved = 0;
}

__device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ void store(__half* to, float x) { *to = __float2half_rn(x); }

template <class Low>
__global__ void __launch_bounds__(kThreads) cast_kernel(const float* from, Low* to, int64_t n) {
  for_elements(n, [&](int64_t i) { store(to + i, from[i]); });
}

}  // namespace

void launch_fold(Stream stream, float* out, std::span<const float* const> terms,
                 std::span<const FoldStep> order, int64_t n) {
  const cudaStream_t on = handle(stream);

  // The common trees have kernels of their own; any other order is a small program, whose size is
  // rounded up so that few kernels are compiled.
  const unsigned blocks = blocks_of(n, kThreads * kPerThread);
  FourTerms four{};
  for (size_t t = 0; t < terms.size() && t < 4; ++t) four.term[t] = terms[t];
  if (is(order, {{0, 1}})) {
    fold_tree<Tree::kPair><<<blocks, kThreads, 0, on>>>(out, four, n);
  } else if (is(order, {{0, 1}, {0, 2}})) {
    fold_tree<Tree::kLeft3><<<blocks, kThreads, 0, on>>>(out, four, n);
  } else if (is(order, {{1, 2}, {0, 1}})) {
    fold_tree<Tree::kRight3><<<blocks, kThreads, 0, on>>>(out, four, n);
  } else if (is(order, {{0, 1}, {2, 3}, {0, 2}})) {
    fold_tree<Tree::kBalanced4><<<blocks, kThreads, 0, on>>>(out, four, n);
  } else if (terms.size() <= 8) {
    launch_any<8>(on, out, terms, order, n);
  } else if (terms.size() <= 64) {
    launch_any<64>(on, out, terms, order, n);
  } else {
    launch_any<kMaxFoldTerms>(on, out, terms, order, n);
  }
  check_launch("the fold kernel's launch");
}

void launch_add_into(Stream stream, float* a, const float* b, int64_t n) {
  if (n == 0) return;
  add_into_kernel<<<blocks_of(n, kThreads * kPerThread), kThreads, 0, handle(stream)>>>(a, b, n);
  check_launch("the add_into kernel's launch");
}

void launch_chunk_squares(Stream stream, const float* x, const StateChunk* chunks, int64_t count,
                          double* votes) {
  if (count == 0) return;
  chunk_squares_kernel<<<blocks_of(count, kThreads / kWarp), kThreads, 0, handle(stream)>>>(
      x, chunks, count, votes);
  check_launch("the chunk_squares kernel's launch");
}

void launch_commit(Stream stream, const double* votes, const VoteLayout& layout,
                   const StepInputs* inputs, StepOutcome* outcome) {
  const VotePlaces places{layout.losses(), layout.counts(), layout.stop(), layout.saving()};
  commit_kernel<<<1, kCommitThreads, 0, handle(stream)>>>(votes, layout, places, inputs, outcome);
  check_launch("the commit kernel's launch");
}

void launch_cast(Stream stream, const float* from, void* to, int64_t n, Precision precision) {
  if (n == 0) return;
  const cudaStream_t on = handle(stream);
  const unsigned blocks = blocks_of(n, kThreads * kPerThread);
  switch (precision) {
    case Precision::kFloat32:
      return TUTTI_CUDA_CALL(cudaMemcpyAsync, to, from, static_cast<size_t>(n) * sizeof(float),
                             cudaMemcpyDeviceToDevice, on);
    case Precision::kBfloat16:
      cast_kernel<<<blocks, kThreads, 0, on>>>(from, static_cast<__nv_bfloat16*>(to), n);
      break;
    case Precision::kFloat16:
      cast_kernel<<<blocks, kThreads, 0, on>>>(from, static_cast<__half*>(to), n);
      break;
  }
  check_launch("the cast kernel's launch");
}

}  // namespace tutti
