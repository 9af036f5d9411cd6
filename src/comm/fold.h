// The kernels of the exact reduction: sums of float arrays over a fixed tree, one pass over memory,
// one code path for any length (the masked tail gives every element the same operations). Compiled
// for AVX-512 and AVX2, chosen at run time: additions round alike on both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// a[i] += b[i]
void add_into(float* a, const float* b, int64_t n);

/// One addition of a fold: terms[left] += terms[right].
struct FoldStep {
  int left, right;
};
/// out[i] = the tree over terms: they are folded by the additions of `order`, one after the other,
/// each of which leaves its sum in its left term; that of the last is the result. The terms
/// themselves are not changed, but `out` may be one of them. One term is copied.
void fold(float* out, std::span<const float* const> terms, std::span<const FoldStep> order,
          int64_t n);

/// The sum of squares in double of n <= kChunk floats, in one fixed order.
double sum_squares(const float* x, int64_t n);

}  // namespace tutti
