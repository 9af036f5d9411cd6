// Sums over the pixels of an image, channel by channel. Only for *.simd.cc files.
#pragma once

#include "base/simd/vec.h"

namespace tutti::TUTTI_ISA {

/// sums[j * channels + c] = the sum over pixels p of the j-th of the n values that term(p, c,
/// lanes, out) writes to out. Pixel p belongs to chain p % 4, since in one chain every addition
/// would wait for the one before.
template <int n, typename Term>
inline __attribute__((always_inline)) void pixel_sums(int64_t pixels, int64_t channels, float* sums,
                                                      Term&& term) {
  for_vectors(channels, [&](int64_t c, auto lanes) {
    F s[4][n];
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < n; ++j) s[i][j] = zero();
    }
    const auto add = [&](int64_t p, int i) __attribute__((always_inline)) {
      F values[n];
      term(p, c, lanes, values);
#pragma clang loop unroll(full)
      for (int j = 0; j < n; ++j) s[i][j] = s[i][j] + values[j];
    };

    // The last pixels keep their chains, so the sum depends on their number alone.
    int64_t p = 0;
    for (; p + 4 <= pixels; p += 4) {
#pragma clang loop unroll(full)
      for (int i = 0; i < 4; ++i) add(p + i, i);
    }
    if (p < pixels) add(p, 0);
    if (p + 1 < pixels) add(p + 1, 1);
    if (p + 2 < pixels) add(p + 2, 2);
#pragma clang loop unroll(full)
    for (int j = 0; j < n; ++j)
      lanes.store(sums + j * channels + c, (s[0][j] + s[1][j]) + (s[2][j] + s[3][j]));
  });
}

}  // namespace tutti::TUTTI_ISA
