// Vectors with AVX-512, one register of 16 lanes; the contracts of all three such headers.
// Included by vec.h alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tutti::TUTTI_ISA {

using F = __m512;
using I = __m512i;  // words
using D = __m512d;  // half as many doubles
using M = __mmask16;
constexpr int kWidth = 16;

inline F zero() { return _mm512_setzero_ps(); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
/// Writes past the caches, for whole lines that are not read soon. p is aligned to a vector;
/// finish_streams() must follow.
inline void stream(float* p, F x) { _mm512_stream_ps(p, x); }
/// Streamed stores are not ordered with those that follow, which may tell another thread: with this
/// between them they are.
inline void finish_streams() { _mm_sfence(); }
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
inline M is_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }

/// The first and the second half of the lanes.
inline void widen(F x, D& low, D& high) {
  low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  high = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}

inline I set_words(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline I lane_numbers() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline I plus(I a, I b) { return _mm512_add_epi32(a, b); }
inline I exclusive_or(I a, I b) { return _mm512_xor_si512(a, b); }
/// The low and high words of the 32 x 32 -> 64 bit products. There is an instruction for every
/// second lane only, so even and odd lanes are multiplied apart and merged.
inline void products(I a, I m, I& low, I& high) {
  const I even = _mm512_mul_epu32(a, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
  low = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
  high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
}
inline M at_least(I a, I b) { return _mm512_cmpge_epu32_mask(a, b); }
/// Adds the two halves of 16 lanes, and takes the larger of each pair.
inline __m256 halves_added(const F* a) {
  return _mm512_castps512_ps256(*a) +
         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*a), 1));
}
inline __m256 halves_max(const F* a) {
  return _mm256_max_ps(_mm512_castps512_ps256(*a),
                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*a), 1)));
}

}  // namespace tutti::TUTTI_ISA
