// The loops of comm/fold.h, compiled once for each code path. All make the same additions on every
// element; only the number of elements in a register differs.
#include "base/simd/vec.h"
#include "comm/fold_kernels.h"

namespace tutti::TUTTI_ISA {
namespace {

// One pass over memory, and plain on purpose: asking for lines 512 bytes or more ahead, or walking
// several pages at once, was slower where the arrays fit the last-level cache, and showed no clear
// gain where they did not.
template <typename Tree>
void sweep(float* out, const float* const* terms, int64_t n, Tree tree) {
  constexpr int64_t kStep = 32;  // two cache lines
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    F sums[kStep / kWidth];
    for (int v = 0; v < kStep / kWidth; ++v) {
      sums[v] = tree([&](int t) { return load(terms[t] + i + v * kWidth); });
    }
    for (int v = 0; v < kStep / kWidth; ++v) store(out + i + v * kWidth, sums[v]);
  }

  // The rest goes through masked vectors: every element gets the operations of the loop above.
  for (; i < n; i += kWidth) {
    const M mask = first(n - i < kWidth ? n - i : kWidth);
    store(out + i, tree([&](int t) { return load(terms[t] + i, mask); }), mask);
  }
}

}  // namespace

void add(float* out, const float* a, const float* b, int64_t n) {
  const float* const terms[] = {a, b};
  sweep(out, terms, n, [](auto at) { return at(0) + at(1); });
}

void fold_shape(TreeShape shape, float* out, const float* const* terms, int64_t n) {
  switch (shape) {
    case TreeShape::kPair:
      return sweep(out, terms, n, [](auto at) { return at(0) + at(1); });
    case TreeShape::kLeft3:
      return sweep(out, terms, n, [](auto at) { return (at(0) + at(1)) + at(2); });
    case TreeShape::kRight3:
      return sweep(out, terms, n, [](auto at) { return at(0) + (at(1) + at(2)); });
    case TreeShape::kBalanced4:
      return sweep(out, terms, n, [](auto at) { return (at(0) + at(1)) + (at(2) + at(3)); });
  }
}

// Element i goes to accumulator i % 32, in order, and the accumulators are then folded in
// halves. A square of a float is exact in double. The tail is filled up with zeros, whose
// squares change nothing.
double sum_squares(const float* x, int64_t n) {
  constexpr int kAccumulators = 32;
  alignas(64) double sums[kAccumulators];
  D acc[2 * kAccumulators / kWidth] = {};
  const auto add_squares = [&](const float* p) {
    for (int v = 0; v < kAccumulators / kWidth; ++v) {
      D low, high;
      widen(load(p + v * kWidth), low, high);
      acc[2 * v] = acc[2 * v] + low * low;
      acc[2 * v + 1] = acc[2 * v + 1] + high * high;
    }
  };
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators) add_squares(x + i);
  if (i < n) {
    alignas(64) float tail[kAccumulators] = {};
    for (int64_t k = 0; i + k < n; ++k) tail[k] = x[i + k];
    add_squares(tail);
  }

  // In memory the accumulators are in the same order on every code path, and so are these
  // additions.
  __builtin_memcpy(sums, acc, sizeof(sums));
  for (int half = kAccumulators / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

}  // namespace tutti::TUTTI_ISA
