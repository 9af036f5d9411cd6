// Norm, activation and a 2 x 2 pool in one pass, and back. Backward finds which of the four pixels
// won a maximum by computing it again from the norm's input, so nothing is stored for it.
#include "tensor/cpu/activation_math.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

/// The larger one, or NaN where either is NaN.
inline F larger(F a, F b) { return select(is_nan(a), a, max(a, b)); }

/// A square of 2 x 2 pixels: the norm's input, and the activation's value and derivative.
struct Window {
  F y[4], value[4], slope[4];
};

/// The pixels of a window are those of its upper row, then those of its lower one.
template <typename Kind, typename Lanes>
inline __attribute__((always_inline)) Window window(const float* y, int64_t row, int64_t pixel,
                                                    F scale, F shift, Lanes lanes) {
  Window w;
  const int64_t at[4] = {0, pixel, row, row + pixel};
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) {
    w.y[i] = lanes.load(y + at[i]);
    const auto v = Kind::at(fma(w.y[i], scale, shift));
    w.value[i] = v.value;
    w.slope[i] = v.derivative;
  }
  return w;
}

template <Pool pool>
inline __attribute__((always_inline)) F pooled(const Window& w) {
  if constexpr (pool == Pool::kMax) {
    return larger(larger(w.value[0], w.value[1]), larger(w.value[2], w.value[3]));
  }
  return ((w.value[0] + w.value[1]) + (w.value[2] + w.value[3])) * set(0.25f);
}

/// What reaches each pixel of d, the gradient of the pooled value, once it has passed back through
/// the activation.
template <Pool pool>
inline __attribute__((always_inline)) void spread(const Window& w, F d, F* out) {
  if constexpr (pool == Pool::kAverage) {
    const F quarter = d * set(0.25f);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) out[i] = quarter * w.slope[i];
    return;
  }
  const F top = pooled<Pool::kMax>(w);
  F left = d;  // zero once the first of the largest pixels has taken it
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) {
    const M below = less(w.value[i], top);
    out[i] = select(below, zero(), left) * w.slope[i];
    left = select(below, left, zero());
  }
}

template <typename Body>
inline __attribute__((always_inline)) void with_kinds(Activation act, Pool pool, Body&& body) {
  activations::with_activation(act, [&](auto kind) {
    if (pool == Pool::kMax) return body(kind, std::integral_constant<Pool, Pool::kMax>{});
    body(kind, std::integral_constant<Pool, Pool::kAverage>{});
  });
}

void pool_forward(const float* y, Affine affine, Activation act, Pool pool, float* out,
                  int64_t height, int64_t width, int64_t channels) {
  const int64_t row = width * channels;
  with_kinds(act, pool, [&](auto kind, auto how) {
    for (int64_t h = 0; h < height / 2; ++h) {
      for (int64_t w = 0; w < width / 2; ++w, out += channels) {
        const float* from = y + 2 * h * row + 2 * w * channels;
        for_vectors(channels, [&](int64_t c, auto lanes) {
          const auto part =
              window<decltype(kind)>(from + c, row, channels, lanes.load(affine.scale + c),
                                     lanes.load(affine.shift + c), lanes);
          lanes.store(out + c, pooled<how.value>(part));
        });
      }
    }
  });
}

// The four pixels of a window belong to four chains of the sums.
void pool_sums(const float* dout, const float* y, Affine affine, const float* mean, Activation act,
               Pool pool, float* sums, int64_t height, int64_t width, int64_t channels) {
  const int64_t row = width * channels;
  with_kinds(act, pool, [&](auto kind, auto how) {
    for_vectors(channels, [&](int64_t c, auto lanes) {
      const F scale = lanes.load(affine.scale + c), shift = lanes.load(affine.shift + c),
              m = lanes.load(mean + c);
      F s[4] = {zero(), zero(), zero(), zero()}, centred[4] = {zero(), zero(), zero(), zero()};

      const float* from_above = dout + c;
      for (int64_t h = 0; h < height / 2; ++h) {
        for (int64_t w = 0; w < width / 2; ++w, from_above += channels) {
          const auto part = window<decltype(kind)>(y + 2 * h * row + 2 * w * channels + c, row,
                                                   channels, scale, shift, lanes);

          F d[4];
          spread<how.value>(part, lanes.load(from_above), d);
#pragma clang loop unroll(full)
          for (int i = 0; i < 4; ++i) {
            s[i] = s[i] + d[i];
            centred[i] = fma(d[i], part.y[i] - m, centred[i]);
          }
        }
      }

      lanes.store(sums + c, (s[0] + s[1]) + (s[2] + s[3]));
      lanes.store(sums + channels + c, (centred[0] + centred[1]) + (centred[2] + centred[3]));
    });
  });
}

/// A pixel outside all windows gets only what the norm's sums contribute: its d is zero.
void outside(const float* y, NormGradient g, float* to, int64_t channels) {
  for_vectors(channels, [&](int64_t c, auto lanes) {
    const F centred = lanes.load(y + c) - lanes.load(g.mean + c);
    lanes.store(to + c, fma(centred, lanes.load(g.b + c), lanes.load(g.c + c)));
  });
}

void pool_backward(const float* dout, const float* y, Affine affine, NormGradient g, Activation act,
                   Pool pool, float* padded, int64_t height, int64_t width, int64_t channels) {
  const int64_t row = width * channels, pitch = row + 2 * channels;
  float* inside = padded + pitch + channels;

  with_kinds(act, pool, [&](auto kind, auto how) {
    for (int64_t h = 0; h < height / 2; ++h) {
      for (int64_t w = 0; w < width / 2; ++w, dout += channels) {
        const float* from = y + 2 * h * row + 2 * w * channels;
        float* to = inside + 2 * h * pitch + 2 * w * channels;
        for_vectors(channels, [&](int64_t c, auto lanes) {
          const auto part =
              window<decltype(kind)>(from + c, row, channels, lanes.load(affine.scale + c),
                                     lanes.load(affine.shift + c), lanes);

          F d[4];
          spread<how.value>(part, lanes.load(dout + c), d);

          // dy = a d + (b (y - mean) + c) for each of the four pixels.
          const F m = lanes.load(g.mean + c), a = lanes.load(g.a + c), b = lanes.load(g.b + c),
                  e = lanes.load(g.c + c);
          const int64_t at[4] = {0, channels, pitch, pitch + channels};
#pragma clang loop unroll(full)
          for (int i = 0; i < 4; ++i)
            lanes.store(to + at[i] + c, fma(d[i], a, fma(part.y[i] - m, b, e)));
        });
      }
    }
  });

  // With an odd height or width the last row or column is in no window.
  const int64_t last_row = height / 2 * 2, last_column = width / 2 * 2;
  for (int64_t h = 0; h < height; ++h) {
    for (int64_t w = h < last_row ? last_column : 0; w < width; ++w) {
      outside(y + h * row + w * channels, g, inside + h * pitch + w * channels, channels);
    }
  }
}

}  // namespace

void fill_pool(ConvKernels& table) {
  table.pool = pool_forward;
  table.pool_sums = pool_sums;
  table.pool_backward = pool_backward;
}

}  // namespace tutti::TUTTI_ISA
