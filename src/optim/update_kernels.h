// The fused update kernels: one pass over parameters, gradients and slots. They are compiled for
// every code path; every operation in them is rounded correctly (IEEE), so all give the same bits. This header uses neither torch nor the standard library, so that no inline function of
// theirs is compiled for an instruction set that the processor may lack.
#pragma once

#include <cstdint>

#include "base/code_path.h"

namespace tutti {

/// What is done to every gradient before an optimizer sees it.
struct GradientScalars {
  float scale;
  float limit;  ///< then it is cut to [-limit, limit]; infinity: not at all
};

/// What sgd, adagrad and rmsprop compute with. Weight decay is added to the gradient.
struct PlainScalars {
  GradientScalars gradient;
  float weight_decay;
  float lr;
  float momentum;      ///< sgd, rmsprop
  float beta2, rest2;  ///< rmsprop; rest = 1 - beta
  float eps;           ///< adagrad, rmsprop
};

/// What adam, adamw, lion and lamb compute with.
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

/// How SGD treats its momentum. kFirst starts it as the gradient and does not read the slot.
enum class Momentum { kNone, kFirst, kNext };

/// All that the elements of a parameter have in common in one step. An optimizer reads its
/// own part.
struct UpdateScalars {
  PlainScalars plain;
  MomentScalars moments;
  Momentum momentum;
};

/// The sums of squares over one chunk of a parameter, for LAMB.
struct ChunkSquares {
  double parameter, direction;
};

/// The passes over n elements of one parameter: p are its values, g its gradients, the
/// others slots.
struct UpdateKernels {
  void (*sgd)(float* p, const float* g, float* m, int64_t n, const PlainScalars& s,
              Momentum momentum, bool nesterov);
  void (*adagrad)(float* p, const float* g, float* sum, int64_t n, const PlainScalars& s);
  /// m is null without momentum
  void (*rmsprop)(float* p, const float* g, float* v, float* m, int64_t n, const PlainScalars& s);
  void (*adam)(float* p, const float* g, float* m, float* v, int64_t n, const MomentScalars& s);
  void (*adamw)(float* p, const float* g, float* m, float* v, int64_t n, const MomentScalars& s);
  void (*lion)(float* p, const float* g, float* m, int64_t n, const MomentScalars& s);
  /// Moves the moments and returns the chunk's sums. Element i is added to accumulator i % 16, in
  /// order, and the accumulators are added in halves.
  ChunkSquares (*lamb_measure)(const float* p, const float* g, float* m, float* v, int64_t n,
                               const MomentScalars& s);
  void (*lamb_update)(float* p, const float* m, const float* v, int64_t n, const MomentScalars& s);
};

#define TUTTI_UPDATE_PARTS(isa)              \
  namespace isa {                            \
  void fill_plain(UpdateKernels& kernels);   \
  void fill_moments(UpdateKernels& kernels); \
  void fill_lamb(UpdateKernels& kernels);    \
  }
TUTTI_ON_EACH_PATH(TUTTI_UPDATE_PARTS)
#undef TUTTI_UPDATE_PARTS

/// The kernels of a path.
UpdateKernels update_kernels(CodePath path);

}  // namespace tutti
