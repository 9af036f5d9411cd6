// The loops of comm/fold.h, compiled once for AVX2 and once for AVX-512. Both make the same
// additions on every element; only the number of elements in a register differs.
#include <immintrin.h>

#include "comm/fold_kernels.h"

namespace tutti::TUTTI_ISA {
namespace {

#if defined(__AVX512F__)
struct Vector {
  static constexpr int kSize = 16;
  __m512 v;
  static Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vector load(const float* p, int count) { return {_mm512_maskz_loadu_ps(mask(count), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int count) const { _mm512_mask_storeu_ps(p, mask(count), v); }
  friend Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.v, b.v)}; }

 private:
  static __mmask16 mask(int count) { return static_cast<__mmask16>((1U << count) - 1U); }
};
#else
struct Vector {
  static constexpr int kSize = 8;
  __m256 v;
  static Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vector load(const float* p, int count) { return {_mm256_maskload_ps(p, mask(count))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(float* p, int count) const { _mm256_maskstore_ps(p, mask(count), v); }
  friend Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.v, b.v)}; }

 private:
  static __m256i mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};
#endif

// One pass over memory, and plain on purpose: asking for lines 512 bytes or more ahead, or walking
// several pages at once, was slower where the arrays fit the last-level cache, and showed no clear
// gain where they did not.
template <typename Tree>
void sweep(float* out, const float* const* terms, int64_t n, Tree tree) {
  constexpr int64_t kStep = 32;  // two cache lines
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Vector sums[kStep / Vector::kSize];
    for (int v = 0; v < kStep / Vector::kSize; ++v) {
      sums[v] = tree([&](int t) { return Vector::load(terms[t] + i + v * Vector::kSize); });
    }
    for (int v = 0; v < kStep / Vector::kSize; ++v) sums[v].store(out + i + v * Vector::kSize);
  }

  // The rest goes through masked vectors: every element gets the operations of the loop above.
  for (; i < n; i += Vector::kSize) {
    const int count = static_cast<int>(n - i < Vector::kSize ? n - i : Vector::kSize);
    tree([&](int t) { return Vector::load(terms[t] + i, count); }).store(out + i, count);
  }
}

}  // namespace

void add(float* out, const float* a, const float* b, int64_t n) {
  const float* const terms[] = {a, b};
  sweep(out, terms, n, [](auto at) { return at(0) + at(1); });
}

void add_into(float* a, const float* b, int64_t n) { add(a, a, b, n); }

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
  constexpr int kDoubles = Vector::kSize / 2;
  alignas(64) double sums[kAccumulators];
#if defined(__AVX512F__)
  __m512d acc[kAccumulators / kDoubles];
  for (auto& a : acc) a = _mm512_setzero_pd();
  auto add_squares = [&](const float* p) {
    for (int v = 0; v < kAccumulators / kDoubles; ++v) {
      const __m512d d = _mm512_cvtps_pd(_mm256_loadu_ps(p + v * kDoubles));
      acc[v] = _mm512_add_pd(acc[v], _mm512_mul_pd(d, d));
    }
  };
#else
  __m256d acc[kAccumulators / kDoubles];
  for (auto& a : acc) a = _mm256_setzero_pd();
  auto add_squares = [&](const float* p) {
    for (int v = 0; v < kAccumulators / kDoubles; ++v) {
      const __m256d d = _mm256_cvtps_pd(_mm_loadu_ps(p + v * kDoubles));
      acc[v] = _mm256_add_pd(acc[v], _mm256_mul_pd(d, d));
    }
  };
#endif
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators) add_squares(x + i);
  if (i < n) {
    alignas(64) float tail[kAccumulators] = {};
    for (int64_t k = 0; i + k < n; ++k) tail[k] = x[i + k];
    add_squares(tail);
  }

  // In memory the accumulators are in the same order for both instruction sets, and so
  // are these additions.
  __builtin_memcpy(sums, acc, sizeof(sums));
  for (int half = kAccumulators / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

}  // namespace tutti::TUTTI_ISA
