// The register tile of attention and matmul, and the packing of their operands. A tile is a few
// rows by a few vectors of a product, held in registers over the whole inner dimension. Attention's
// has up to 6 rows by kTileVectors vectors: 24 of 32 registers with AVX-512, 12 of 16 with AVX2.
#pragma once

#include <cstring>
#include <type_traits>

#include "base/simd/vec.h"

namespace tutti::TUTTI_ISA {

constexpr int kTileRows = 6;
constexpr int kTileVectors = kWidth == 16 ? 4 : 2;
constexpr int kPanel = kTileVectors * kWidth;
/// Those of the widest code path. Scratch is as large on all paths, since its size is part of a
/// plan and the ranks of a run may use several.
constexpr int64_t kWidestVector = 16, kWidestPanel = 64;
static_assert(kWidth <= kWidestVector && kPanel <= kWidestPanel);

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <int rows, int vectors>
struct Tile {
  F c[rows][vectors];

  __attribute__((always_inline)) Tile() {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) c[r][v] = zero();
    }
  }

  __attribute__((always_inline)) void load_from(const float* x, int64_t stride) {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) c[r][v] = load(x + r * stride + v * kWidth);
    }
  }
  __attribute__((always_inline)) void store_to(float* x, int64_t stride) const {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) store(x + r * stride + v * kWidth, c[r][v]);
    }
  }

  /// c += a b over `depth`. Element (r, k) of a is at a[r * row_stride + k * step], row k of b is
  /// at b + k * ldb.
  __attribute__((always_inline)) void multiply(const float* a, int64_t row_stride, int64_t step,
                                               const float* b, int64_t ldb, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k, a += step, b += ldb) {
      F bv[vectors];
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) bv[v] = load(b + v * kWidth);
#pragma clang loop unroll(full)
      for (int r = 0; r < rows; ++r) {
        const F ar = set(a[r * row_stride]);
#pragma clang loop unroll(full)
        for (int v = 0; v < vectors; ++v) c[r][v] = fma(ar, bv[v], c[r][v]);
      }
    }
  }
};

/// Calls body with the number as a compile-time constant, since a tile's registers need one.
/// Numbers above the largest tile count as the largest.
template <typename Body>
inline __attribute__((always_inline)) void with_rows(int64_t rows, Body&& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    default:
      return body(std::integral_constant<int, 6>{});
  }
}
template <typename Body>
inline __attribute__((always_inline)) void with_vectors(int64_t vectors, Body&& body) {
  if constexpr (kTileVectors == 4) {
    if (vectors == 3) return body(std::integral_constant<int, 3>{});
    if (vectors >= 4) return body(std::integral_constant<int, 4>{});
  }
  if (vectors == 1) return body(std::integral_constant<int, 1>{});
  return body(std::integral_constant<int, 2>{});
}

/// The number of vectors in the panel that starts at column `from` of `cols` columns.
inline int64_t panel_vectors(int64_t cols, int64_t from) {
  const int64_t n = (cols - from + kWidth - 1) / kWidth;
  return n < kTileVectors ? n : kTileVectors;
}

/// out [rows, padded] = x [rows, dim] at `stride`, with zeros after dim: the tail's vector is
/// stored whole, and `padded` is dim rounded up to a vector.
inline void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t dim, int64_t padded,
                      float* out) {
  for (int64_t r = 0; r < rows; ++r, x += stride, out += padded) {
    for_vectors(dim, [&](int64_t c, auto lanes) { store(out + c, lanes.load(x + c)); });
  }
}

/// Transposes 8 x 8 floats times scale.
inline void transpose8(const float* x, int64_t stride, float* out, int64_t out_stride,
                       float scale) {
#if defined(__AVX2__)
  // Pairs of rows are interleaved, then pairs of pairs, then the 128-bit halves are swapped.
  __m256 r[8], t[8];
  const __m256 s = _mm256_set1_ps(scale);
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(x + i * stride) * s;
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }

  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
#else
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) out[j * out_stride + i] = x[i * stride + j] * scale;
  }
#endif
}

/// The transpose of x [rows, dim] at `stride`, times scale, as panels of `panel` columns: panel p
/// is [dim, panel] and holds rows p * panel and on, with zeros after the last row.
template <int panel = kPanel>
inline void pack_transposed(const float* x, int64_t stride, int64_t rows, int64_t dim, float scale,
                            float* out) {
  for (; rows > 0; rows -= panel, x += panel * stride, out += dim * panel) {
    for (int64_t d = 0; d < dim; d += 8) {
      for (int64_t c = 0; c < panel; c += 8) {
        const float* from = x + c * stride;
        float* to = out + d * panel + c;
        if (c + 8 <= rows && d + 8 <= dim) {
          transpose8(from + d, stride, to, panel, scale);
          continue;
        }
        // An edge block goes element by element: transpose8 would read past the array.
        for (int64_t k = 0; k < 8 && d + k < dim; ++k) {
          for (int64_t i = 0; i < 8; ++i)
            to[k * panel + i] = c + i < rows ? from[i * stride + d + k] * scale : 0.0f;
        }
      }
    }
  }
}

}  // namespace tutti::TUTTI_ISA
