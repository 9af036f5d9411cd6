// Loops that do nothing but move memory: the limit that optimizers are compared with. Vectors as
// wide as the kernels'.
#pragma once

#include <cstdint>

#include "base/code_path.h"

namespace tutti {

struct StreamKernels {
  void (*copy)(float* a, const float* b, int64_t n);  ///< a = b, past the caches
  /// a = b + s c, past the caches
  void (*triad)(float* a, const float* b, const float* c, int64_t n);
  /// Reads so many arrays and adds something to the first `written` of them, in place: 1 <= written
  /// <= read <= 4.
  void (*in_place)(float* const* arrays, int read, int written, int64_t n);
};

#define TUTTI_STREAM_KERNELS(isa)                                            \
  namespace isa {                                                            \
  StreamKernels stream_kernels();                                            \
  /* Fused multiply-adds that wait for nothing; returns their operations. */ \
  double multiply_adds(int64_t rounds);                                      \
  }
TUTTI_ON_EACH_PATH(TUTTI_STREAM_KERNELS)
#undef TUTTI_STREAM_KERNELS

}  // namespace tutti
