// A vector of floats (F, kWidth lanes) and a mask of lanes (M) for both instruction sets, so that a
// kernel is written once. Only for *.simd.cc files: everything is declared in the namespace of the
// instruction set that is being compiled.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tutti::TUTTI_ISA {

#if defined(__AVX512F__)

using F = __m512;
using I = __m512i;
using M = __mmask16;
constexpr int kWidth = 16;

inline F zero() { return _mm512_setzero_ps(); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
/// Writes past the caches, for whole lines that are not read soon. p is aligned to a vector; an
/// _mm_sfence must follow.
inline void stream(float* p, F x) { _mm512_stream_ps(p, x); }
/// The first n lanes, 0 <= n <= kWidth.
inline M first(int64_t n) { return static_cast<M>((1u << n) - 1); }
/// Lanes outside the mask are zero when loaded, and their memory is not touched.
inline F load(const float* p, M m) { return _mm512_maskz_loadu_ps(m, p); }
inline void store(float* p, F x, M m) { _mm512_mask_storeu_ps(p, m, x); }
/// x where the mask is set, else y.
inline F select(M m, F x, F y) { return _mm512_mask_mov_ps(y, m, x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  ///< c - a b
inline F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
/// The second operand where either is NaN, so a bound comes first where NaN must pass through.
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F sqrt(F a) { return _mm512_sqrt_ps(a); }
inline F round(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// a 2^n for whole n.
inline F scale2(F a, F n) { return _mm512_scalef_ps(a, n); }
inline M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

/// Of 16 lanes, the first 8 and the last 8.
inline __m256 halves_added(const F* a) {
  return _mm512_castps512_ps256(*a) +
         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*a), 1));
}
inline __m256 halves_max(const F* a) {
  return _mm256_max_ps(_mm512_castps512_ps256(*a),
                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*a), 1)));
}

#else

using F = __m256;
using I = __m256i;
using M = __m256i;  // all bits of a lane set or none
constexpr int kWidth = 8;

inline F zero() { return _mm256_setzero_ps(); }
inline F set(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void stream(float* p, F x) { _mm256_stream_ps(p, x); }
inline M first(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load(const float* p, M m) { return _mm256_maskload_ps(p, m); }
inline void store(float* p, F x, M m) { _mm256_maskstore_ps(p, m, x); }
inline F select(M m, F x, F y) { return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(m)); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
inline F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F sqrt(F a) { return _mm256_sqrt_ps(a); }
inline F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n is made of its exponent bits alone, so n is within [-126, 127].
inline F scale2(F a, F n) {
  const __m256i bits =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return a * _mm256_castsi256_ps(bits);
}
inline M less(F a, F b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

inline __m256 halves_added(const F* a) { return a[0] + a[1]; }
inline __m256 halves_max(const F* a) { return _mm256_max_ps(a[0], a[1]); }

#endif

/// 1, unknown to the compiler, for factors that may be 1: it would leave such a product out, and a
/// denormal number that the product makes zero would stay.
inline F one() {
  uint32_t bits = 0x3F800000;
  asm("" : "+r"(bits));
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return set(x);
}

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
