// n is a multiple of 64 and arrays begin on cache lines. Plain loops: four vectors at once and
// asking for lines 4 KiB ahead were slower in place.
#include "stream.h"

#include "base/simd/vec.h"

namespace tutti::TUTTI_ISA {
namespace {

void copy(float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) stream(a + i, load(b + i));
  finish_streams();
}

void triad(float* a, const float* b, const float* c, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) stream(a + i, fma(set(0.5f), load(c + i), load(b + i)));
  finish_streams();
}

template <int kRead, int kWritten>
void in_place_pass(float* const* given, int64_t n) {
  float* arrays[kRead];
  for (int k = 0; k < kRead; ++k) arrays[k] = given[k];
  for (int64_t i = 0; i < n; i += kWidth) {
    F values[kRead], sum = zero();
#pragma clang loop unroll(full)
    for (int k = 0; k < kRead; ++k) sum = sum + (values[k] = load(arrays[k] + i));
#pragma clang loop unroll(full)
    for (int k = 0; k < kWritten; ++k) store(arrays[k] + i, fma(set(0x1p-20f), sum, values[k]));
  }
}

void in_place(float* const* arrays, int read, int written, int64_t n) {
  using Pass = void (*)(float* const*, int64_t);
  constexpr Pass kPasses[4][4] = {
      {in_place_pass<1, 1>, nullptr, nullptr, nullptr},
      {in_place_pass<2, 1>, in_place_pass<2, 2>, nullptr, nullptr},
      {in_place_pass<3, 1>, in_place_pass<3, 2>, in_place_pass<3, 3>, nullptr},
      {in_place_pass<4, 1>, in_place_pass<4, 2>, in_place_pass<4, 3>, in_place_pass<4, 4>},
  };
  kPasses[read - 1][written - 1](arrays, n);
}

}  // namespace

double multiply_adds(int64_t rounds) {
  constexpr int kChains = 12;
  F sums[kChains];
  for (F& sum : sums) sum = zero();
  F a = set(0.999f), b = set(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma clang loop unroll(full)
    for (int k = 0; k < kChains; ++k) sums[k] = fma(sums[k], a, b);
  }
  float out[kWidth];
  F all = zero();
  for (const F& sum : sums) all = all + sum;
  store(out, all);
  asm volatile("" : : "r"(out) : "memory");
  return 2.0 * static_cast<double>(rounds) * kChains * kWidth;
}

StreamKernels stream_kernels() { return {copy, triad, in_place}; }

}  // namespace tutti::TUTTI_ISA
