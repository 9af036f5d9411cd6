// The fold kernels of every code path, before the choice among them: fold.cc picks one, and a test
// compares them.
#pragma once

#include <cstdint>

#include "base/code_path.h"

namespace tutti {

/// Shapes of trees that have a loop of their own; every other tree is evaluated block by block.
///   kPair a+b   kLeft3 (a+b)+c   kRight3 a+(b+c)   kBalanced4 (a+b)+(c+d)
enum class TreeShape { kPair, kLeft3, kRight3, kBalanced4 };

#define TUTTI_FOLD_KERNELS(isa)                                                       \
  namespace isa {                                                                     \
  void add(float* out, const float* a, const float* b, int64_t n);                    \
  void fold_shape(TreeShape shape, float* out, const float* const* terms, int64_t n); \
  double sum_squares(const float* x, int64_t n);                                      \
  }
TUTTI_ON_EACH_PATH(TUTTI_FOLD_KERNELS)
#undef TUTTI_FOLD_KERNELS

}  // namespace tutti
