// One code path for every element: whole vectors, then the same vector operations under a mask. A masked lane computes
// on zeros and is not stored.
#include "optim/update.h"

#include <immintrin.h>

namespace tutti::TUTTI_ISA {
namespace {

#ifdef __AVX512F__
struct Vec {
  __m512 x;
};
struct Mask {
  __mmask16 bits;
};
constexpr int64_t kWidth = 16;
inline Vec all(float value) { return {_mm512_set1_ps(value)}; }
inline Mask first(int64_t n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
inline Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Vec load(const float* from, Mask mask) { return {_mm512_maskz_loadu_ps(mask.bits, from)}; }
inline void store(float* to, Vec a) { _mm512_storeu_ps(to, a.x); }
inline void store(float* to, Vec a, Mask mask) { _mm512_mask_storeu_ps(to, mask.bits, a.x); }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.x, b.x)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.x, b.x)}; }
inline Vec root(Vec a) { return {_mm512_sqrt_ps(a.x)}; }
inline Vec mul_add(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
inline Vec mul_sub_from(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.x, b.x, c.x)}; }
#else
struct Vec {
  __m256 x;
};
struct Mask {
  __m256i bits;
};
constexpr int64_t kWidth = 8;
inline Vec all(float value) { return {_mm256_set1_ps(value)}; }
inline Mask first(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane)};
}
inline Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
inline Vec load(const float* from, Mask mask) { return {_mm256_maskload_ps(from, mask.bits)}; }
inline void store(float* to, Vec a) { _mm256_storeu_ps(to, a.x); }
inline void store(float* to, Vec a, Mask mask) { _mm256_maskstore_ps(to, mask.bits, a.x); }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.x, b.x)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.x, b.x)}; }
inline Vec root(Vec a) { return {_mm256_sqrt_ps(a.x)}; }
inline Vec mul_add(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
inline Vec mul_sub_from(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.x, b.x, c.x)}; }
#endif

/// Calls body(offset) for whole vectors and body(offset, mask) for what is left.
template <typename Body>
inline void sweep(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i);
  if (i < n) body(i, first(n - i));
}

template <Momentum kMomentum, bool kNesterov>
void sgd_pass(float* p, const float* g, float* m, int64_t n, const SgdScalars& s) {
  const Vec scale = all(s.gradient_scale), decay = all(s.weight_decay), momentum = all(s.momentum), lr = all(s.lr);
  sweep(n, [&](int64_t i, auto... mask) {
    Vec value = load(p + i, mask...);
    Vec direction = mul_add(decay, value, mul(load(g + i, mask...), scale));
    if constexpr (kMomentum != Momentum::kNone) {
      Vec moment = direction;
      if constexpr (kMomentum == Momentum::kNext) moment = mul_add(momentum, load(m + i, mask...), direction);
      store(m + i, moment, mask...);
      direction = kNesterov ? mul_add(momentum, moment, direction) : moment;
    }
    store(p + i, mul_sub_from(lr, direction, value), mask...);
  });
}

}  // namespace

void adamw(float* p, const float* g, float* m, float* v, int64_t n, const AdamwScalars& s) {
  const Vec scale = all(s.gradient_scale), decay = all(s.decay), beta1 = all(s.beta1), rest1 = all(s.rest1);
  const Vec beta2 = all(s.beta2), rest2 = all(s.rest2), correction = all(s.root_correction), eps = all(s.eps);
  const Vec step_size = all(s.step_size);
  sweep(n, [&](int64_t i, auto... mask) {
    Vec gradient = mul(load(g + i, mask...), scale);
    Vec first_moment = mul_add(beta1, load(m + i, mask...), mul(rest1, gradient));
    Vec second_moment = mul_add(beta2, load(v + i, mask...), mul(mul(rest2, gradient), gradient));
    store(m + i, first_moment, mask...);
    store(v + i, second_moment, mask...);
    Vec divisor = mul_add(root(second_moment), correction, eps);
    Vec value = mul(load(p + i, mask...), decay);
    store(p + i, mul_sub_from(step_size, div(first_moment, divisor), value), mask...);
  });
}

void sgd(float* p, const float* g, float* m, int64_t n, const SgdScalars& s, Momentum momentum, bool nesterov) {
  switch (momentum) {
    case Momentum::kNone:
      return sgd_pass<Momentum::kNone, false>(p, g, m, n, s);
    case Momentum::kFirst:
      return nesterov ? sgd_pass<Momentum::kFirst, true>(p, g, m, n, s)
                      : sgd_pass<Momentum::kFirst, false>(p, g, m, n, s);
    case Momentum::kNext:
      return nesterov ? sgd_pass<Momentum::kNext, true>(p, g, m, n, s)
                      : sgd_pass<Momentum::kNext, false>(p, g, m, n, s);
  }
}

}  // namespace tutti::TUTTI_ISA
