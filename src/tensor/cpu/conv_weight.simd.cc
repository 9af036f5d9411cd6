// The gradient of a convolution's weight over one image: panels [tap, in][kConvStrip] = the sum
// over output pixels of the pixel's patch times its dy. A tile is a few neighbours in the patch,
// contiguous in the padded image, by two vectors of dy, held in registers over all pixels. What
// earlier images left is added at the end, so that chains stay short.
#include <utility>

#include "base/simd/vec.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

constexpr int kRows = kWidth == 16 ? 14 : 6;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t parts(int64_t n, int64_t most) { return (n + most - 1) / most; }

// The output pixels that a tile sums over, and the distances of their rows and pixels in the image
// (a) and in dy (b). `first`: the panels hold nothing yet.
struct Pixels {
  int64_t rows, columns, a_row, a_pixel, b_row, b_pixel;
  bool first;
};

template <int rows, int vectors>
void tile(const Pixels& p, const float* a, const float* b, float* out, int64_t columns) {
  F c[rows][vectors];
  M mask[vectors];
#pragma clang loop unroll(full)
  for (int v = 0; v < vectors; ++v) {
    const int64_t left = columns - v * kWidth;
    mask[v] = TUTTI_ISA::first(left < 0 ? 0 : least(left, kWidth));
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) c[r][v] = zero();
  }

  // dy has no padding between pixels, so the last channels are read through a mask; the choice is
  // made once per tile, outside the loops.
  const auto accumulate = [&](auto get) {
    for (int64_t h = 0; h < p.rows; ++h) {
      const float *left = a + h * p.a_row, *right = b + h * p.b_row;
      for (int64_t w = 0; w < p.columns; ++w, left += p.a_pixel, right += p.b_pixel) {
        F bv[vectors];
#pragma clang loop unroll(full)
        for (int v = 0; v < vectors; ++v) bv[v] = get(right + v * kWidth, v);
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; ++r) {
          const F ar = set(left[r]);
#pragma clang loop unroll(full)
          for (int v = 0; v < vectors; ++v) c[r][v] = fma(ar, bv[v], c[r][v]);
        }
      }
    }
  };
  if (columns >= vectors * kWidth) {
    accumulate([](const float* at, int) { return load(at); });
  } else {
    accumulate([&](const float* at, int v) { return load(at, mask[v]); });
  }

  // Panels are padded to whole strips, so whole vectors are stored: masked lanes are zeros.
#pragma clang loop unroll(full)
  for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
    for (int v = 0; v < vectors; ++v) {
      float* to = out + r * kConvStrip + v * kWidth;
      store(to, p.first ? c[r][v] : load(to) + c[r][v]);
    }
  }
}

using TileOf = void (*)(const Pixels&, const float* a, const float* b, float* out, int64_t columns);

template <int vectors, size_t... i>
TileOf tile_of(int64_t rows, std::index_sequence<i...>) {
  static constexpr TileOf all[] = {tile<static_cast<int>(i) + 1, vectors>...};
  return all[rows - 1];
}

void weight_gradient(const float* padded, const float* dy, float* panels, const ConvShape& s,
                     bool first) {
  // A row of the kernel is `run` contiguous floats of the image. It is cut evenly, so that no tile
  // is much narrower than the others. A 1 x 1 kernel skips the image's rim.
  const int64_t pitch = (s.width + 2) * s.in, dy_pitch = (s.out_width() + 2) * s.out;
  const int64_t rim = s.kernel == 1 ? 1 : 0, run = s.kernel * s.in,
                each = parts(run, parts(run, kRows));

  const Pixels pixels{s.out_height(), s.out_width(), s.stride * pitch, s.stride * s.in, dy_pitch,
                      s.out,          first};
  const float *a = padded + rim * (pitch + s.in), *b = dy + dy_pitch + s.out;
  for (int64_t j = 0; j < s.out; j += 2 * kWidth) {
    const int64_t columns = s.out - j;
    float* strip = panels + j / kConvStrip * (s.kernel * run * kConvStrip) + j % kConvStrip;

    for (int64_t t = 0; t < s.kernel; ++t) {
      for (int64_t k = 0; k < run; k += each) {
        const int64_t rows = least(each, run - k);
        const TileOf compute = columns > kWidth
                                   ? tile_of<2>(rows, std::make_index_sequence<kRows>{})
                                   : tile_of<1>(rows, std::make_index_sequence<kRows>{});
        compute(pixels, a + t * pitch + k, b + j, strip + (t * run + k) * kConvStrip, columns);
      }
    }
  }
}

}  // namespace

void fill_conv_weight(ConvKernels& table) { table.weight_gradient = weight_gradient; }

}  // namespace tutti::TUTTI_ISA
