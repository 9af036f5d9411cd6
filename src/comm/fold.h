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

/// out[i] = the tree over terms: terms are folded by the additions of `order` (pairs of indices
/// into terms: left += right, in order; the last one leaves the sum in order.back().first). out may
/// be one of the terms. With one term: a copy.
struct FoldStep {
  int left, right;
};
void fold(float* out, std::span<const float* const> terms, std::span<const FoldStep> order,
          int64_t n);

/// The sum of squares in double of n <= kChunk floats, in one fixed order.
double sum_squares(const float* x, int64_t n);

}  // namespace tutti
