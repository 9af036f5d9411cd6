// A vector of floats (F, kWidth lanes) and a mask of lanes (M), so that a kernel is written once for
// all instruction sets. Only for *.simd.cc files: everything is declared in the namespace of the
// instruction set that is being compiled.
#pragma once

#include <cstdint>
#include <cstring>

namespace tutti::TUTTI_ISA {

/// 1, unknown to the compiler, for factors that may be 1: it would leave such a product out, and a
/// denormal number that the product makes zero would stay.
inline float hidden_one() {
  uint32_t bits = 0x3F800000;
  asm("" : "+r"(bits));
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace tutti::TUTTI_ISA

#if defined(__AVX512F__)
#include "base/simd/vec_avx512.h"
#elif defined(__AVX2__)
#include "base/simd/vec_avx2.h"
#else
#include "base/simd/vec_portable.h"
#endif

namespace tutti::TUTTI_ISA {

inline F one() { return set(hidden_one()); }

/// What a row's sums and maxima are kept in: as many lanes on every instruction set, in one vector
/// or in several, so that their order is the same everywhere. Column c of the row goes to lane
/// c mod 16.
constexpr int kLanes = 16, kParts = kLanes / kWidth;
struct Lanes {
  F part[kParts];
};
inline Lanes lanes_of(F x) {
  Lanes all;
  for (F& part : all.part) part = x;
  return all;
}
inline Lanes operator+(const Lanes& a, const Lanes& b) {
  Lanes sum;
  for (int p = 0; p < kParts; ++p) sum.part[p] = a.part[p] + b.part[p];
  return sum;
}

/// The sum and the largest of all lanes. Both halve the lanes until one is left.
#if defined(__AVX2__)
inline float sum(const Lanes& a) {
  const __m256 h = halves_added(a.part);
  __m128 q = _mm256_castps256_ps128(h) + _mm256_extractf128_ps(h, 1);
  q = q + _mm_movehl_ps(q, q);
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float largest(const Lanes& a) {
  const __m256 h = halves_max(a.part);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
#else
template <typename Join>
inline float joined(Lanes a, Join join) {
  a.part[0] = join(a.part[0], a.part[1]);
  for (int half = kWidth / 2; half > 0; half /= 2) {
    F other = a.part[0];
    for (int l = 0; l < half; ++l) other[l] = other[l + half];
    a.part[0] = join(a.part[0], other);
  }
  return a.part[0][0];
}
inline float sum(const Lanes& a) {
  return joined(a, [](F x, F y) { return x + y; });
}
inline float largest(const Lanes& a) {
  return joined(a, [](F x, F y) { return max(x, y); });
}
#endif

/// How a kernel's body touches memory: as whole vectors, or as the masked tail of a row.
/// for_vectors calls body(column, lanes) with one or the other, so that both run the
/// same arithmetic.
struct Whole {
  F load(const float* p) const { return TUTTI_ISA::load(p); }
  void store(float* p, F x) const { TUTTI_ISA::store(p, x); }
  F keep(F x, F = F{}) const { return x; }
};
struct Tail {
  M mask;
  F load(const float* p) const { return TUTTI_ISA::load(p, mask); }
  void store(float* p, F x) const { TUTTI_ISA::store(p, x, mask); }
  /// `other` in the lanes past the end
  F keep(F x, F other = zero()) const { return select(mask, x, other); }
};
template <typename Body>
inline __attribute__((always_inline)) void for_vectors(int64_t cols, Body&& body) {
  int64_t c = 0;
  for (; c + kWidth <= cols; c += kWidth) body(c, Whole{});
  if (c < cols) body(c, Tail{first(cols - c)});
}

/// The same for bodies that add to Lanes: body(column, lanes, part) also knows which part of them
/// its vector is. Past the end it is called for every part, with an empty mask perhaps: a lane must
/// see the same operations on every instruction set (a largest value forgets a NaN).
template <typename Body>
inline __attribute__((always_inline)) void for_lanes(int64_t cols, Body&& body) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) {
#pragma clang loop unroll(full)
    for (int p = 0; p < kParts; ++p) body(c + p * kWidth, Whole{}, p);
  }
  if (c == cols) return;
#pragma clang loop unroll(full)
  for (int p = 0; p < kParts; ++p) {
    const int64_t left = cols - c - p * kWidth;
    body(c + p * kWidth, Tail{first(left < 0 ? 0 : left > kWidth ? kWidth : left)}, p);
  }
}

/// The vector at p + column, or zero where the array is null.
template <typename Lanes>
inline F load_or_zero(const float* p, int64_t column, Lanes lanes) {
  return p == nullptr ? zero() : lanes.load(p + column);
}
/// sums += x, unless the array is null.
template <typename Lanes>
inline void add_to(float* sums, int64_t column, F x, Lanes lanes) {
  if (sums != nullptr) lanes.store(sums + column, lanes.load(sums + column) + x);
}
inline void clear(float* sums, int64_t count) {
  if (sums != nullptr) std::memset(sums, 0, static_cast<size_t>(count) * sizeof(float));
}

// The polynomials are minimax fits of the relative error, evaluated by Horner's rule with FMA.
template <int n>
inline F polynomial(F x, const float (&c)[n]) {
  F y = set(c[n - 1]);
#pragma clang loop unroll(full)
  for (int i = n - 2; i >= 0; --i) y = fma(y, x, set(c[i]));
  return y;
}

/// 2^x, with x held within [-126, 127]; NaN stays NaN. The relative error is about 1e-7 by rounding
/// and 2e-9 by the fit.
inline F exp2(F x) {
  x = min(set(127.0f), max(set(-126.0f), x));
  const F n = round(x);
  constexpr float c[] = {1.0f,           0.693147206f,   0.240226469f,   0.0555032878f,
                         0.00961848896f, 0.00133999312f, 0.000153458117f};
  return scale2(polynomial(x - n, c), n);
}

/// e^x, with x held within [-87.3, 88]; NaN stays NaN. ln 2 is subtracted in two parts (Cody and
/// Waite), the first of which times n is exact.
inline F exp(F x) {
  x = min(set(88.0f), max(set(-87.3f), x));
  const F n = round(x * set(1.44269504f));
  F r = fnma(n, set(0.693359375f), x);
  r = fnma(n, set(-2.12194440e-4f), r);
  constexpr float c[] = {1.0f,          1.00000004f,   0.499999921f,  0.166664202f,
                         0.0416682256f, 0.0083748158f, 0.00138368457f};
  return scale2(polynomial(r, c), n);
}

}  // namespace tutti::TUTTI_ISA
