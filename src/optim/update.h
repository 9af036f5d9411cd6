// The fused update kernels: one pass over parameters, gradients and moments. Compiled for AVX2 and AVX-512; every
// operation in them is rounded correctly (IEEE), so both give the same bits. Torch-free and free of the standard
// library, so that no inline function of it is compiled for an instruction set that the processor may lack.
#pragma once

#include <cstdint>

namespace tutti {

struct AdamwScalars {
  float gradient_scale;
  float decay;         ///< 1 - lr * weight_decay
  float beta1, rest1;  ///< rest1 = 1 - beta1
  float beta2, rest2;
  float root_correction;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  ///< lr / (1 - beta1^t)
};

struct SgdScalars {
  float gradient_scale;
  float weight_decay;
  float momentum;
  float lr;
};

/// How SGD treats its momentum; kFirst starts it as the gradient and does not read the slot.
enum class Momentum { kNone, kFirst, kNext };

#define TUTTI_UPDATE_KERNELS                                                                        \
  void adamw(float* p, const float* g, float* m, float* v, int64_t n, const AdamwScalars& scalars); \
  void sgd(float* p, const float* g, float* m, int64_t n, const SgdScalars& scalars, Momentum momentum, bool nesterov);

namespace isa_avx2 {
TUTTI_UPDATE_KERNELS
}
namespace isa_avx512 {
TUTTI_UPDATE_KERNELS
}
#undef TUTTI_UPDATE_KERNELS

}  // namespace tutti
