// Vectors of 8 lanes in C++ without intrinsics, for any processor: the compiler's vector types.
// Included by vec.h alone; contracts are in vec_avx512.h. It is compiled for plain x86-64, where
// fused multiply-adds are made of doubles, and for processors that have them.
#pragma once

#include <cstdint>
#include <cstring>

namespace tutti::TUTTI_ISA {

constexpr int kWidth = 8;
using F = float __attribute__((vector_size(kWidth * sizeof(float))));
using I = uint32_t __attribute__((vector_size(kWidth * sizeof(uint32_t))));
using M = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t))));  // all bits or none
using D = double __attribute__((vector_size(kWidth / 2 * sizeof(double))));

inline F zero() { return F{}; }
inline F set(float x) { return F{x, x, x, x, x, x, x, x}; }
inline F load(const float* p) {
  F x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
inline void stream(float* p, F x) { store(p, x); }
inline void finish_streams() {}
inline M first(int64_t n) { return M{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<int32_t>(n); }
inline F load(const float* p, M m) {
  F x = zero();
  for (int l = 0; l < kWidth; ++l) {
    if (m[l] != 0) x[l] = p[l];
  }
  return x;
}
inline void store(float* p, F x, M m) {
  for (int l = 0; l < kWidth; ++l) {
    if (m[l] != 0) p[l] = x[l];
  }
}
/// A comparison's result, unknown to the compiler on ARM: LLVM makes `x < 0 ? 0 : x` the
/// instruction for a maximum there, which makes -0 a +0.
inline M compared(M m) {
#if defined(__aarch64__)
  using Half = int32_t __attribute__((vector_size(sizeof(M) / 2)));
  Half halves[2];
  std::memcpy(halves, &m, sizeof m);
  asm("" : "+w"(halves[0]), "+w"(halves[1]));
  std::memcpy(&m, halves, sizeof m);
#endif
  return m;
}
inline F select(M m, F x, F y) {
  return reinterpret_cast<F>((reinterpret_cast<M>(x) & m) | (reinterpret_cast<M>(y) & ~m));
}
/// Denormal numbers become zero, as they do in the instructions for a maximum and a minimum.
inline F flushed(F x) { return x * set(hidden_one()); }
inline F max(F a, F b) { return flushed(select(compared(a > b), a, b)); }
inline F min(F a, F b) { return flushed(select(compared(a < b), a, b)); }
inline F abs(F a) { return reinterpret_cast<F>(reinterpret_cast<I>(a) & 0x7FFFFFFFu); }
inline F sqrt(F a) {
  for (int l = 0; l < kWidth; ++l) a[l] = __builtin_sqrtf(a[l]);
  return a;
}
// From 2^23 on all floats are whole; below, what adding 2^23 leaves is rounded to a whole number.
inline F round(F a) {
  const F magnitude = abs(a), whole = (magnitude + set(0x1p23f)) - set(0x1p23f);
  const I sign = reinterpret_cast<I>(a) & 0x80000000u;
  return select(magnitude < set(0x1p23f), reinterpret_cast<F>(reinterpret_cast<I>(whole) | sign),
                a);
}
// 2^n is made of its exponent bits alone, so n is within [-126, 127].
inline F scale2(F a, F n) {
  return a * reinterpret_cast<F>((__builtin_convertvector(n, M) + 127) << 23);
}
inline M less(F a, F b) { return compared(a < b); }
inline M is_nan(F x) { return compared(x != x); }

#if defined(__FMA__) || defined(__aarch64__)
inline F fma(F a, F b, F c) {
  for (int l = 0; l < kWidth; ++l) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return c;
}
#else
// The product of two floats is exact in double. The sum is rounded to double and then to float,
// which differs from rounding it once only if the double is not exact and lies half way between two
// floats: its last 29 bits are then 1 and zeros.
using Doubles = double __attribute__((vector_size(kWidth * sizeof(double))));
using Words = uint32_t __attribute__((vector_size(kWidth * sizeof(double))));
using Longs = int64_t __attribute__((vector_size(kWidth * sizeof(int32_t))));

/// The same, for lanes of which some lie half way: these doubles are moved by their last bit towards
/// the exact sum.
inline __attribute__((noinline)) F fma_halfway(F a, F b, F c) {
  for (int l = 0; l < kWidth; ++l) {
    const double product = static_cast<double>(a[l]) * static_cast<double>(b[l]), term = c[l];
    double sum = product + term;
    uint64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    if ((bits & 0x1FFFFFFF) == 0x10000000) {
      const double rest = sum - product;
      const double error = (product - (sum - rest)) + (term - rest);
      if (error != 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
      std::memcpy(&sum, &bits, sizeof bits);
    }
    c[l] = static_cast<float>(sum);
  }
  return c;
}

inline F fma(F a, F b, F c) {
  const Doubles sum = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles) +
                      __builtin_convertvector(c, Doubles);
  const Words words = reinterpret_cast<Words>(sum);
  const I low = __builtin_shufflevector(words, words, 0, 2, 4, 6, 8, 10, 12, 14);
  const Longs halfway = reinterpret_cast<Longs>((low << 3) == 0x80000000u);
  if (__builtin_expect((halfway[0] | halfway[1] | halfway[2] | halfway[3]) != 0, 0))
    return fma_halfway(a, b, c);
  return __builtin_convertvector(sum, F);
}
#endif
// Signs change without rounding.
inline F fnma(F a, F b, F c) { return fma(-a, b, c); }
inline F fms(F a, F b, F c) { return fma(a, b, -c); }

inline void widen(F x, D& low, D& high) {
  low = D{x[0], x[1], x[2], x[3]};
  high = D{x[4], x[5], x[6], x[7]};
}

inline I set_words(uint32_t x) { return I{x, x, x, x, x, x, x, x}; }
inline I lane_numbers() { return I{0, 1, 2, 3, 4, 5, 6, 7}; }
inline I plus(I a, I b) { return a + b; }
inline I exclusive_or(I a, I b) { return a ^ b; }
inline void products(I a, I m, I& low, I& high) {
  using Wide = uint64_t __attribute__((vector_size(kWidth * sizeof(uint64_t))));
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(m, Wide);
  low = __builtin_convertvector(product, I);
  high = __builtin_convertvector(product >> 32, I);
}
inline M at_least(I a, I b) { return a >= b; }

}  // namespace tutti::TUTTI_ISA
