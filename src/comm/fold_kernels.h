// The fold kernels of both instruction sets, before the choice between them: fold.cc picks one, and
// a test compares the two.
#pragma once

#include <cstdint>

namespace tutti {

/// Shapes of trees that have a loop of their own; every other tree is evaluated block by block.
///   kPair a+b   kLeft3 (a+b)+c   kRight3 a+(b+c)   kBalanced4 (a+b)+(c+d)
enum class TreeShape { kPair, kLeft3, kRight3, kBalanced4 };

#define TUTTI_FOLD_KERNELS(isa)                                                       \
  namespace isa {                                                                     \
  void add_into(float* a, const float* b, int64_t n);                                 \
  void add(float* out, const float* a, const float* b, int64_t n);                    \
  void fold_shape(TreeShape shape, float* out, const float* const* terms, int64_t n); \
  double sum_squares(const float* x, int64_t n);                                      \
  }
TUTTI_FOLD_KERNELS(isa_avx2)
TUTTI_FOLD_KERNELS(isa_avx512)
#undef TUTTI_FOLD_KERNELS

}  // namespace tutti
