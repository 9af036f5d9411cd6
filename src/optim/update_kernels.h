// The fused update kernels: one pass over parameters, gradients and slots. Compiled for AVX2 and
// AVX-512; every operation in them is rounded correctly (IEEE), so both give the same bits.
// Torch-free and free of the standard library, so that no inline function of it is compiled for an
// instruction set that the processor may lack.
#pragma once

#include <cstdint>

namespace tutti {

/// What becomes of every gradient before an optimizer sees it.
struct GradientScalars {
  float scale;
  float limit;  ///< then cut to [-limit, limit]; infinity: it is not
};

/// sgd, adagrad, rmsprop: weight decay is added to the gradient.
struct PlainScalars {
  GradientScalars gradient;
  float weight_decay;
  float lr;
  float momentum;      ///< sgd, rmsprop
  float beta2, rest2;  ///< rmsprop; rest = 1 - beta
  float eps;           ///< adagrad, rmsprop
};

/// adam, adamw, lion, lamb.
struct MomentScalars {
  GradientScalars gradient;
  float decay;         ///< adam, lamb: the weight decay; adamw, lion: 1 - lr * weight decay
  float beta1, rest1;  ///< rest = 1 - beta
  float beta2, rest2;
  float eps;
  float correction;       ///< 1 / (1 - beta1^t); adam, adamw have it in step_size
  float root_correction;  ///< 1 / sqrt(1 - beta2^t)
  float step_size;        ///< adam, adamw: lr / (1 - beta1^t); lion: lr; lamb: lr * trust
};

/// How SGD treats its momentum; kFirst starts it as the gradient and does not read the slot.
enum class Momentum { kNone, kFirst, kNext };

/// All that an optimizer's elements have in common in one step; an optimizer reads its own part.
struct UpdateScalars {
  PlainScalars plain;
  MomentScalars moments;
  Momentum momentum;
};

/// Sums of squares over one chunk.
struct ChunkSquares {
  double parameter, direction;
};

struct UpdateKernels {
  void (*sgd)(float* p, const float* g, float* m, int64_t n, const PlainScalars& s,
              Momentum momentum, bool nesterov);
  void (*adagrad)(float* p, const float* g, float* sum, int64_t n, const PlainScalars& s);
  /// m: or null
  void (*rmsprop)(float* p, const float* g, float* v, float* m, int64_t n, const PlainScalars& s);
  void (*adam)(float* p, const float* g, float* m, float* v, int64_t n, const MomentScalars& s);
  void (*adamw)(float* p, const float* g, float* m, float* v, int64_t n, const MomentScalars& s);
  void (*lion)(float* p, const float* g, float* m, int64_t n, const MomentScalars& s);
  /// The sums add element i to accumulator i % 16, in order, and fold the accumulators in halves.
  ChunkSquares (*lamb_measure)(const float* p, const float* g, float* m, float* v, int64_t n,
                               const MomentScalars& s);
  void (*lamb_update)(float* p, const float* m, const float* v, int64_t n, const MomentScalars& s);
};

namespace isa_avx2 {
void fill_plain(UpdateKernels& kernels);
void fill_moments(UpdateKernels& kernels);
void fill_lamb(UpdateKernels& kernels);
}  // namespace isa_avx2
namespace isa_avx512 {
void fill_plain(UpdateKernels& kernels);
void fill_moments(UpdateKernels& kernels);
void fill_lamb(UpdateKernels& kernels);
}  // namespace isa_avx512

}  // namespace tutti
