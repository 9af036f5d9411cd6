// The optimizers' updates, one block per chunk. Element by element they are the operations of
// src/optim/*.simd.cc, in the same order, each rounded correctly, with FMA where those have it: the
// same bits as on the CPU. LAMB takes three launches: moments and norms by chunk; trust ratios by
// parameter; the step. Its trust ratios are the exception: chunks are added in double and the ratio
// is rounded to float, where the CPU adds them exactly and rounds later.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/cuda_state.h"
#include "cuda/errors.h"

namespace tutti {
namespace {

constexpr int kThreads = 256;
constexpr int kChunkSize = 4096;
static_assert(kChunkSize == kChunk);

/// What happens to a gradient first: it is scaled and cut. NaN fails both comparisons and
/// stays NaN.
struct Gradient {
  float scale, limit;
  __device__ float operator()(float g) const {
    const float x = g * scale;
    const float below = limit < x ? limit : x;
    return -limit > below ? -limit : below;
  }
};

/// One chunk: where its elements are, its role, and how its new values are kept.
struct Chunk {
  float* p;
  const float* g;
  float *first, *second;  // the optimizer's slots, or null
  void* low;
  int64_t at;
  int size;
  Precision precision;
  RuleScalars::Role role;

  /// The new value of element i, in both precisions.
  __device__ void keep(int i, float value) const {
    p[i] = value;
    if (precision == Precision::kBfloat16)
      static_cast<__nv_bfloat16*>(low)[at + i] = __float2bfloat16_rn(value);
    if (precision == Precision::kFloat16)
      static_cast<__half*>(low)[at + i] = __float2half_rn(value);
  }
};

__device__ Chunk chunk_of(const UpdateArguments& a) {
  const StateChunk& chunk = a.chunks[blockIdx.x];
  return {.p = a.parameters + chunk.at,
          .g = a.gradients + chunk.at,
          .first = a.slots[0] == nullptr ? nullptr : a.slots[0] + chunk.at,
          .second = a.slots[1] == nullptr ? nullptr : a.slots[1] + chunk.at,
          .low = a.low,
          .at = chunk.at,
          .size = chunk.size,
          .precision = a.low == nullptr ? Precision::kFloat32 : a.precision,
          .role = a.rules[chunk.rule].role};
}

/// The commit's factor for this unit, from the array that follows the outcome.
__device__ float gradient_scale(const UpdateArguments& a) {
  return reinterpret_cast<const float*>(a.outcome + 1)[a.unit];
}

template <class Body>
__device__ __forceinline__ void for_chunk(const Chunk& chunk, Body body) {
#pragma unroll 4
  for (int i = threadIdx.x; i < chunk.size; i += kThreads) body(i);
}

/// Updates a buffer, leaves a frozen parameter alone, and says whether the chunk was one of them. A
/// buffer's gradients are proposals for its next value (model/core/segment.h).
__device__ bool not_trained(const Chunk& chunk, float proposals) {
  if (chunk.role == RuleScalars::kMeanBuffer) {
    for_chunk(chunk, [&](int i) { chunk.keep(i, __fdiv_rn(chunk.g[i], proposals)); });
  } else if (chunk.role == RuleScalars::kSumBuffer) {
    for_chunk(chunk, [&](int i) { chunk.keep(i, chunk.p[i] + chunk.g[i]); });
  }
  return chunk.role != RuleScalars::kTrained;
}

__device__ void sgd(const Chunk& chunk, const PlainScalars& s, Gradient gradient, Momentum momentum,
                    bool nesterov) {
  for_chunk(chunk, [&](int i) {
    const float value = chunk.p[i];
    float direction = fmaf(s.weight_decay, value, gradient(chunk.g[i]));

    if (momentum != Momentum::kNone) {
      float moment = direction;
      if (momentum == Momentum::kNext) moment = fmaf(s.momentum, chunk.first[i], direction);
      chunk.first[i] = moment;
      direction = nesterov ? fmaf(s.momentum, moment, direction) : moment;
    }
    chunk.keep(i, fmaf(-s.lr, direction, value));
  });
}

__device__ void adagrad(const Chunk& chunk, const PlainScalars& s, Gradient gradient) {
  for_chunk(chunk, [&](int i) {
    const float value = chunk.p[i];
    const float direction = fmaf(s.weight_decay, value, gradient(chunk.g[i]));
    const float squares = fmaf(direction, direction, chunk.first[i]);
    chunk.first[i] = squares;
    chunk.keep(i, fmaf(-s.lr, __fdiv_rn(direction, __fsqrt_rn(squares) + s.eps), value));
  });
}

__device__ void rmsprop(const Chunk& chunk, const PlainScalars& s, Gradient gradient) {
  for_chunk(chunk, [&](int i) {
    const float value = chunk.p[i];
    float direction = fmaf(s.weight_decay, value, gradient(chunk.g[i]));
    const float squares = fmaf(s.beta2, chunk.first[i], s.rest2 * direction * direction);
    chunk.first[i] = squares;
    direction = __fdiv_rn(direction, __fsqrt_rn(squares) + s.eps);
    if (chunk.second != nullptr) {
      direction = fmaf(s.momentum, chunk.second[i], direction);
      chunk.second[i] = direction;
    }
    chunk.keep(i, fmaf(-s.lr, direction, value));
  });
}

template <bool kDecoupled>
__device__ void adam(const Chunk& chunk, const MomentScalars& s, Gradient gradient) {
  for_chunk(chunk, [&](int i) {
    float value = chunk.p[i], direction = gradient(chunk.g[i]);
    if constexpr (!kDecoupled) direction = fmaf(s.decay, value, direction);
    const float first_moment = fmaf(s.beta1, chunk.first[i], s.rest1 * direction);
    const float second_moment = fmaf(s.beta2, chunk.second[i], s.rest2 * direction * direction);
    chunk.first[i] = first_moment;
    chunk.second[i] = second_moment;

    // decay is the weight decay in Adam, and 1 - lr * weight decay in AdamW.
    if constexpr (kDecoupled) value = value * s.decay;
    const float divisor = fmaf(__fsqrt_rn(second_moment), s.root_correction, s.eps);
    chunk.keep(i, fmaf(-s.step_size, __fdiv_rn(first_moment, divisor), value));
  });
}

__device__ void lion(const Chunk& chunk, const MomentScalars& s, Gradient gradient) {
  for_chunk(chunk, [&](int i) {
    const float direction = gradient(chunk.g[i]), moment = chunk.first[i];

    // The sign of the step; 0 and NaN give 0.
    const float way = fmaf(s.beta1, moment, s.rest1 * direction);
    const float chosen = 0 < way ? 1.0f : way < 0 ? -1.0f : 0.0f;
    chunk.first[i] = fmaf(s.beta2, moment, s.rest2 * direction);
    chunk.keep(i, fmaf(-s.step_size, chosen, chunk.p[i] * s.decay));
  });
}

template <UpdateKind kKind>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ UpdateArguments a) {
  // A step that is not finite leaves no trace. Every kernel here tests it, since the host does not
  // know the outcome when it launches them.
  if (a.outcome->finite == 0) return;
  const Chunk chunk = chunk_of(a);
  const RuleScalars rule = a.rules[a.chunks[blockIdx.x].rule];
  if (not_trained(chunk, rule.proposals)) return;

  const float scale = gradient_scale(a);
  const Gradient plain{scale, rule.plain.gradient.limit},
      moments{scale, rule.moments.gradient.limit};
  if constexpr (kKind == UpdateKind::kSgd) sgd(chunk, rule.plain, plain, rule.momentum, a.nesterov);
  if constexpr (kKind == UpdateKind::kAdagrad) adagrad(chunk, rule.plain, plain);
  if constexpr (kKind == UpdateKind::kRmsprop) rmsprop(chunk, rule.plain, plain);
  if constexpr (kKind == UpdateKind::kAdam) adam<false>(chunk, rule.moments, moments);
  if constexpr (kKind == UpdateKind::kAdamw) adam<true>(chunk, rule.moments, moments);
  if constexpr (kKind == UpdateKind::kLion) lion(chunk, rule.moments, moments);
}

__device__ float lamb_direction(float value, float m, float v, const MomentScalars& s) {
  return fmaf(s.decay, value,
              __fdiv_rn(m * s.correction, fmaf(__fsqrt_rn(v), s.root_correction, s.eps)));
}

/// Moves the moments, and sums the squares of the chunk's values and directions as lamb.simd.cc
/// does: element i goes to accumulator i % 16, in order, and the accumulators are added in halves.
/// Lanes 0 to 15 of the first warp sum the values, the other 16 the directions.
__global__ void __launch_bounds__(kThreads)
    lamb_measure_kernel(const __grid_constant__ UpdateArguments a) {
  __shared__ float terms[2][kChunkSize];
  constexpr int kAccumulators = 16;
  if (a.outcome->finite == 0) return;
  const Chunk chunk = chunk_of(a);
  double* norms = a.chunk_norms + 2 * int64_t{blockIdx.x};
  if (chunk.role != RuleScalars::kTrained) {
    // What is not trained counts as nothing in its parameter's norms.
    if (threadIdx.x < 2) norms[threadIdx.x] = 0;
    return;
  }

  const MomentScalars s = a.rules[a.chunks[blockIdx.x].rule].moments;
  const Gradient gradient{gradient_scale(a), s.gradient.limit};
  for_chunk(chunk, [&](int i) {
    const float value = chunk.p[i], slope = gradient(chunk.g[i]);
    const float first_moment = fmaf(s.beta1, chunk.first[i], s.rest1 * slope);
    const float second_moment = fmaf(s.beta2, chunk.second[i], s.rest2 * slope * slope);
    chunk.first[i] = first_moment;
    chunk.second[i] = second_moment;
    terms[0][i] = value;
    terms[1][i] = lamb_direction(value, first_moment, second_moment, s);
  });

  // 32 threads are few, but only they can keep the CPU's order of additions.
  __syncthreads();
  if (threadIdx.x >= 2 * kAccumulators) return;
  const int which = threadIdx.x / kAccumulators, accumulator = threadIdx.x % kAccumulators;
  double sum = 0;
#pragma unroll 8
  for (int i = accumulator; i < chunk.size; i += kAccumulators) {
    const double term = terms[which][i];
    sum = fma(term, term, sum);
  }
  for (int half = kAccumulators / 2; half > 0; half /= 2) {
    sum = sum + __shfl_down_sync(0xffffffffu, sum, half, kAccumulators);
  }
  if (accumulator == 0) norms[which] = sum;
}

/// The trust ratio of a parameter, one block each: threads take its chunks at a stride, and are
/// then added in halves.
__global__ void __launch_bounds__(kThreads)
    lamb_trust_kernel(const __grid_constant__ UpdateArguments a) {
  __shared__ double sums[2][kThreads];
  if (a.outcome->finite == 0) return;
  const int64_t begin = a.parameter_chunks[blockIdx.x], end = a.parameter_chunks[blockIdx.x + 1];
  const int t = threadIdx.x;
  double parameter = 0, direction = 0;
  for (int64_t c = begin + t; c < end; c += kThreads) {
    parameter = parameter + a.chunk_norms[2 * c];
    direction = direction + a.chunk_norms[2 * c + 1];
  }

  sums[0][t] = parameter;
  sums[1][t] = direction;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) {
      sums[0][t] = sums[0][t] + sums[0][t + half];
      sums[1][t] = sums[1][t] + sums[1][t + half];
    }
    __syncthreads();
  }

  // LAMB's rule: a parameter or a direction of norm 0 is stepped as it is.
  if (t != 0) return;
  const double of_parameter = sqrt(sums[0][0]), of_direction = sqrt(sums[1][0]);
  a.trust[blockIdx.x] = of_parameter == 0 || of_direction == 0
                            ? 1.0f
                            : static_cast<float>(of_parameter / of_direction);
}

/// The step. Directions are computed again from the moments: storing them would take a
/// third slot.
__global__ void __launch_bounds__(kThreads)
    lamb_update_kernel(const __grid_constant__ UpdateArguments a) {
  if (a.outcome->finite == 0) return;
  const Chunk chunk = chunk_of(a);
  const RuleScalars rule = a.rules[a.chunks[blockIdx.x].rule];
  if (not_trained(chunk, rule.proposals)) return;
  const float step_size = rule.moments.step_size * a.trust[a.chunks[blockIdx.x].parameter];
  for_chunk(chunk, [&](int i) {
    const float value = chunk.p[i];
    chunk.keep(
        i, fmaf(-step_size, lamb_direction(value, chunk.first[i], chunk.second[i], rule.moments),
                value));
  });
}

/// One instance per optimizer, so that a kernel holds only its own rule.
template <UpdateKind kKind>
void launch(const UpdateArguments& a, unsigned blocks, cudaStream_t stream) {
  update_kernel<kKind><<<blocks, kThreads, 0, stream>>>(a);
}

}  // namespace

void launch_update(Stream stream, const UpdateArguments& a) {
  const auto on = static_cast<cudaStream_t>(stream.handle);

  const auto blocks = static_cast<unsigned>(a.chunk_count);

  switch (a.kind) {
    case UpdateKind::kSgd:
      launch<UpdateKind::kSgd>(a, blocks, on);
      break;
    case UpdateKind::kAdagrad:
      launch<UpdateKind::kAdagrad>(a, blocks, on);
      break;
    case UpdateKind::kRmsprop:
      launch<UpdateKind::kRmsprop>(a, blocks, on);
      break;
    case UpdateKind::kAdam:
      launch<UpdateKind::kAdam>(a, blocks, on);
      break;
    case UpdateKind::kAdamw:
      launch<UpdateKind::kAdamw>(a, blocks, on);
      break;
    case UpdateKind::kLion:
      launch<UpdateKind::kLion>(a, blocks, on);
      break;

    case UpdateKind::kLamb:
      // The three depend on each other; the stream keeps their order.
      lamb_measure_kernel<<<blocks, kThreads, 0, on>>>(a);
      check_launch("the lamb_measure kernel's launch");
      if (a.parameter_count > 0) {
        lamb_trust_kernel<<<static_cast<unsigned>(a.parameter_count), kThreads, 0, on>>>(a);
        check_launch("the lamb_trust kernel's launch");
      }
      lamb_update_kernel<<<blocks, kThreads, 0, on>>>(a);
      break;
  }
  check_launch("the update kernel's launch");
}

}  // namespace tutti
