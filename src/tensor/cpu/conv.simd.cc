// Convolutions as products that read the padded image in place. A row of the kernel (kernel x in
// floats) is contiguous in an image row, so the patch of a pixel is `taps` runs of `depth` floats,
// an image row apart; the patch of the next pixel starts one pixel later.
//   tile    kRows pixels of an image row, or of up to three short rows, by two vectors of output
//           channels, in registers over all taps: 14 x 32 with AVX-512, 6 x 16 with AVX2
//   panels  the weights as [strip][tap row, tap column, in][kConvStrip]
// Nothing is unrolled into a matrix of patches (im2col): an image and a strip of weights stay in
// the second-level cache.
//
// The gradient of the input is a convolution of dy with the turned kernel. With a stride of 2 it
// falls into four convolutions, by the parity of a pixel's row and column: an odd row meets kernel
// rows 2 and 0, in adjacent rows of dy, an even one kernel row 1. The order 2, 0, 1 of the panels
// makes each of the four contiguous.
#include <cstring>
#include <utility>

#include "base/simd/vec.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

constexpr int kRows = kWidth == 16 ? 14 : 6;
constexpr int kGroups = 3;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t parts(int64_t n, int64_t most) { return (n + most - 1) / most; }

/// A product over pixels. Pixel w of row h reads runs of `depth` floats at a + h a_row + w a_pixel
/// + t a_tap for t < taps, meets the panel rows from b + t b_tap on, and is written at out + h
/// out_row + w out_pixel.
struct Plane {
  const float* a;
  int64_t rows, pixels, taps, depth, a_row, a_pixel, a_tap;
  const float* b;
  int64_t b_tap, b_strip;
  float* out;
  int64_t out_row, out_pixel, columns;
  bool add;
};

/// A tile of `groups` image rows with `rows` pixels each by `vectors` vectors.
template <int groups, int rows, int vectors>
void tile(const Plane& p, const float* a, const float* b, float* out, int64_t columns) {
  F c[groups][rows][vectors];
  M mask[vectors];
  const bool whole = columns >= vectors * kWidth;
#pragma clang loop unroll(full)
  for (int v = 0; v < vectors; ++v) {
    const int64_t left = columns - v * kWidth;
    mask[v] = first(left < 0 ? 0 : least(left, kWidth));
  }

  // The lines of the result are fetched while the products run. With `add` the chain starts
  // from them.
#pragma clang loop unroll(full)
  for (int g = 0; g < groups; ++g) {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
      const float* from = out + g * p.out_row + r * p.out_pixel;
      __builtin_prefetch(from, 1);
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) {
        c[g][r][v] = zero();
        if (p.add) c[g][r][v] = load(from + v * kWidth, mask[v]);
      }
    }
  }

  // The panels are padded with zeros to whole strips, so b is always read in whole vectors.
  for (int64_t t = 0; t < p.taps; ++t) {
    const float *left = a + t * p.a_tap, *right = b + t * p.b_tap;
    for (int64_t k = 0; k < p.depth; ++k, ++left, right += kConvStrip) {
      F bv[vectors];
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) bv[v] = load(right + v * kWidth);
#pragma clang loop unroll(full)
      for (int g = 0; g < groups; ++g) {
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; ++r) {
          const F ar = set(left[g * p.a_row + r * p.a_pixel]);
#pragma clang loop unroll(full)
          for (int v = 0; v < vectors; ++v) c[g][r][v] = fma(ar, bv[v], c[g][r][v]);
        }
      }
    }
  }

  // The result has no padding: past the last channel the next pixel begins.
#pragma clang loop unroll(full)
  for (int g = 0; g < groups; ++g) {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
      float* to = out + g * p.out_row + r * p.out_pixel;
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; ++v) {
        if (whole) {
          store(to + v * kWidth, c[g][r][v]);
        } else {
          store(to + v * kWidth, c[g][r][v], mask[v]);
        }
      }
    }
  }
}

using TileOf = void (*)(const Plane&, const float* a, const float* b, float* out, int64_t columns);

// Tiles of 1 to kRows / groups rows: sizes are compile-time constants, so that a tile is registers.
template <int groups, int vectors, size_t... i>
TileOf tile_of(int64_t rows, std::index_sequence<i...>) {
  static constexpr TileOf all[] = {tile<groups, static_cast<int>(i) + 1, vectors>...};
  return all[rows - 1];
}
template <int vectors>
TileOf tile_of(int64_t groups, int64_t rows) {
  if (groups == 3) return tile_of<3, vectors>(rows, std::make_index_sequence<kRows / 3>{});
  if (groups == 2) return tile_of<2, vectors>(rows, std::make_index_sequence<kRows / 2>{});
  return tile_of<1, vectors>(rows, std::make_index_sequence<kRows>{});
}

// A row is cut evenly into runs of at most kRows pixels; where a run is short, a tile takes several
// rows of the image, so that it still fills the registers.
void product(const Plane& p) {
  if (p.rows == 0 || p.pixels == 0) return;
  const int64_t across = parts(p.pixels, parts(p.pixels, kRows)),
                together = least(kGroups, kRows / across);
  for (int64_t j = 0; j < p.columns; j += 2 * kWidth) {
    const int64_t columns = p.columns - j;
    // AVX2's two vectors are half a strip.
    const float* b = p.b + j / kConvStrip * p.b_strip + j % kConvStrip;
    for (int64_t h = 0; h < p.rows; h += together) {
      const int64_t groups = least(together, p.rows - h);
      for (int64_t w = 0; w < p.pixels; w += across) {
        const int64_t rows = least(across, p.pixels - w);
        const TileOf compute =
            columns > kWidth ? tile_of<2>(groups, rows) : tile_of<1>(groups, rows);
        compute(p, p.a + h * p.a_row + w * p.a_pixel, b,
                p.out + h * p.out_row + w * p.out_pixel + j, columns);
      }
    }
  }
}

void forward(const float* padded, const float* panels, float* y, const ConvShape& s) {
  // A 1 x 1 kernel has no rim to read: it starts at the inside of the padded image.
  const int64_t pitch = (s.width + 2) * s.in, rim = s.kernel == 1 ? 1 : 0;
  product({padded + rim * (pitch + s.in), s.out_height(), s.out_width(), s.kernel, s.kernel * s.in,
           s.stride * pitch, s.stride * s.in, pitch, panels, s.kernel * s.in * kConvStrip,
           s.kernel * s.kernel * s.in * kConvStrip, y, s.out_width() * s.out, s.out, s.out, false});
}

void input_gradient(const float* dy, const float* panels, float* dx, const ConvShape& s, bool add) {
  const int64_t pitch = (s.out_width() + 2) * s.out,
                strip = s.kernel * s.kernel * s.out * kConvStrip;
  const int64_t row = s.width * s.in, inside = pitch + s.out, tap = s.kernel * s.out * kConvStrip;

  // One tap: dx gets one product per pixel of dy, `stride` pixels apart.
  if (s.kernel == 1) {
    return product({dy + inside, s.out_height(), s.out_width(), 1, s.out, pitch, s.out, pitch,
                    panels, tap, strip, dx, s.stride * row, s.stride * s.in, s.in, add});
  }

  // Pixel (h, w) of dx is under the turned kernel whose patch begins at (h, w) of the padded dy.
  if (s.stride == 1) {
    return product({dy, s.height, s.width, 3, 3 * s.out, pitch, s.out, pitch, panels, tap, strip,
                    dx, row, s.in, s.in, add});
  }

  // The four convolutions of a stride of 2. Odd rows and columns use the first two taps of the
  // panels, even ones the third.
  for (const int64_t odd_row : {0, 1}) {
    for (const int64_t odd_column : {0, 1}) {
      const float* b = panels + (odd_row ? 0 : 2 * tap) + (odd_column ? 0 : 2 * s.out * kConvStrip);
      product({dy + inside, (s.height + 1 - odd_row) / 2, (s.width + 1 - odd_column) / 2,
               odd_row + 1, (odd_column + 1) * s.out, pitch, s.out, pitch, b, tap, strip,
               dx + odd_row * row + odd_column * s.in, 2 * row, 2 * s.in, s.in, add});
    }
  }
}

// The panels hold the weights in the order of a patch (tap, in), where the weights themselves have
// (in, tap); columns after the last are zeros.
void pack_weight(const float* weight, float* panels, const ConvShape& s) {
  const int64_t area = s.kernel * s.kernel, depth = area * s.in;
  for (int64_t from = 0; from < s.out; from += kConvStrip, panels += depth * kConvStrip) {
    const int64_t columns = least(kConvStrip, s.out - from);
    for (int64_t i = 0, k = 0; i < s.in; ++i) {
      for (int64_t t = 0; t < area; ++t, ++k) {
        float* to = panels + (t * s.in + i) * kConvStrip;
        for (int64_t o = 0; o < columns; ++o) to[o] = weight[(from + o) * depth + k];
        for (int64_t o = columns; o < kConvStrip; ++o) to[o] = 0;
      }
    }
  }
}

// Here `in` and `out` change places, and the taps come in the order that the input's gradient
// meets them.
void pack_weight_backward(const float* weight, float* panels, const ConvShape& s) {
  constexpr int64_t kTurned[] = {2, 1, 0}, kByParity[] = {2, 0, 1}, kSingle[] = {0};
  const int64_t* order = s.kernel == 1 ? kSingle : s.stride == 1 ? kTurned : kByParity;
  const int64_t area = s.kernel * s.kernel;
  for (int64_t from = 0; from < s.in; from += kConvStrip) {
    const int64_t columns = least(kConvStrip, s.in - from);
    for (int64_t t = 0; t < area; ++t) {
      const int64_t tap = order[t / s.kernel] * s.kernel + order[t % s.kernel];
      for (int64_t o = 0; o < s.out; ++o, panels += kConvStrip) {
        const float* row = weight + (o * s.in + from) * area + tap;
        for (int64_t i = 0; i < columns; ++i) panels[i] = row[i * area];
        for (int64_t i = columns; i < kConvStrip; ++i) panels[i] = 0;
      }
    }
  }
}

// The inverse of pack_weight, for a gradient: the zero columns are dropped.
void unpack_weight(const float* panels, float* weight, const ConvShape& s) {
  const int64_t area = s.kernel * s.kernel, depth = area * s.in;
  for (int64_t from = 0; from < s.out; from += kConvStrip, panels += depth * kConvStrip) {
    const int64_t columns = least(kConvStrip, s.out - from);
    for (int64_t i = 0, k = 0; i < s.in; ++i) {
      for (int64_t t = 0; t < area; ++t, ++k) {
        const float* row = panels + (t * s.in + i) * kConvStrip;
        for (int64_t o = 0; o < columns; ++o) weight[(from + o) * depth + k] = row[o];
      }
    }
  }
}

}  // namespace

void fill_conv(ConvKernels& table) {
  table.forward = forward;
  table.input_gradient = input_gradient;
  table.pack_weight = pack_weight;
  table.pack_weight_backward = pack_weight_backward;
  table.unpack_weight = unpack_weight;
}

}  // namespace tutti::TUTTI_ISA
