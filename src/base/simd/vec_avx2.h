// Vectors with AVX2, one register of 8 lanes. Included by vec.h alone; contracts are in
// vec_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tutti::TUTTI_ISA {

using F = __m256;
using I = __m256i;
using D = __m256d;
using M = __m256i;  // all bits of a lane set or none
constexpr int kWidth = 8;

inline F zero() { return _mm256_setzero_ps(); }
inline F set(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void stream(float* p, F x) { _mm256_stream_ps(p, x); }
inline void finish_streams() { _mm_sfence(); }
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
inline M is_nan(F x) { return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

inline void widen(F x, D& low, D& high) {
  low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

inline I set_words(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
inline I lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline I plus(I a, I b) { return _mm256_add_epi32(a, b); }
inline I exclusive_or(I a, I b) { return _mm256_xor_si256(a, b); }
inline void products(I a, I m, I& low, I& high) {
  const I even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
// AVX2 compares signed integers only, so a >= b is max(a, b) == a.
inline M at_least(I a, I b) { return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a); }
inline __m256 halves_added(const F* a) { return a[0] + a[1]; }
inline __m256 halves_max(const F* a) { return _mm256_max_ps(a[0], a[1]); }

}  // namespace tutti::TUTTI_ISA
