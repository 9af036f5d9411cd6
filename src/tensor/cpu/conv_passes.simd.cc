// The forward passes between convolutions: the moments of an image; norm, activation and residual
// sum in one pass; and the norm's backward. An image is still in the cache when they read it.
#include "tensor/cpu/activation_math.h"
#include "tensor/cpu/conv_sums.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

// Two passes, since sum(y^2) - pixels mean^2 would cancel.
void moments(const float* y, float* mean, float* squares, int64_t pixels, int64_t channels) {
  pixel_sums<1>(pixels, channels, mean, [&](int64_t p, int64_t c, auto lanes, F* out) {
    out[0] = lanes.load(y + p * channels + c);
  });
  const F count = set(static_cast<float>(pixels));
  for_vectors(channels,
              [&](int64_t c, auto lanes) { lanes.store(mean + c, lanes.load(mean + c) / count); });
  pixel_sums<1>(pixels, channels, squares, [&](int64_t p, int64_t c, auto lanes, F* out) {
    const F d = lanes.load(y + p * channels + c) - lanes.load(mean + c);
    out[0] = d * d;
  });
}

/// padded = value(offset in y, channel, lanes) for every pixel. The rim is left alone: it
/// stays zero.
template <typename Value>
inline __attribute__((always_inline)) void fill(float* padded, int64_t height, int64_t width,
                                                int64_t channels, Value&& value) {
  const int64_t pitch = (width + 2) * channels;
  float* to = padded + pitch + channels;
  for (int64_t h = 0, from = 0; h < height; ++h, to += pitch) {
    for (int64_t w = 0; w < width; ++w, from += channels) {
      for_vectors(channels, [&](int64_t c, auto lanes) {
        lanes.store(to + w * channels + c, value(from + c, c, lanes));
      });
    }
  }
}

void pack(const float* y, const Affine* affine, Activation act, float* padded, int64_t height,
          int64_t width, int64_t channels) {
  if (affine == nullptr) {
    // Without an affine an image row is copied at once: its pixels are adjacent on both sides.
    const int64_t row = width * channels;
    float* to = padded + row + 3 * channels;
    for (int64_t h = 0; h < height; ++h, to += row + 2 * channels, y += row) {
      for_vectors(row, [&](int64_t c, auto lanes) { lanes.store(to + c, lanes.load(y + c)); });
    }
    return;
  }

  activations::with_activation(act, [&](auto kind) {
    fill(padded, height, width, channels, [&](int64_t i, int64_t c, auto lanes) {
      return kind
          .at(fma(lanes.load(y + i), lanes.load(affine->scale + c), lanes.load(affine->shift + c)))
          .value;
    });
  });
}

// The only pass that changes the layout: images come as planes, one per channel.
void pack_planes(const float* image, float* padded, int64_t height, int64_t width,
                 int64_t channels) {
  const int64_t pitch = (width + 2) * channels;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t h = 0; h < height; ++h, image += width) {
      float* to = padded + (h + 1) * pitch + channels + c;
      for (int64_t w = 0; w < width; ++w) to[w * channels] = image[w];
    }
  }
}

// dy = a d + (b (y - mean) + c), as NormGradient has it.
void norm_backward(const float* d, const float* y, NormGradient g, float* padded, int64_t height,
                   int64_t width, int64_t channels) {
  fill(padded, height, width, channels, [&](int64_t i, int64_t c, auto lanes) {
    const F centred = lanes.load(y + i) - lanes.load(g.mean + c);
    return fma(lanes.load(d + i), lanes.load(g.a + c),
               fma(centred, lanes.load(g.b + c), lanes.load(g.c + c)));
  });
}

/// out = act(term(u, offset, channel, lanes)) with u = y scale + shift; term adds the shortcut.
template <typename Term>
void join_with(const float* y, Affine affine, Activation act, float* out, int64_t pixels,
               int64_t channels, Term&& term) {
  activations::with_activation(act, [&](auto kind) {
    for (int64_t p = 0, at = 0; p < pixels; ++p, at += channels) {
      for_vectors(channels, [&](int64_t c, auto lanes) {
        const F u =
            fma(lanes.load(y + at + c), lanes.load(affine.scale + c), lanes.load(affine.shift + c));
        lanes.store(out + at + c, kind.at(term(u, at + c, c, lanes)).value);
      });
    }
  });
}

void join(const float* y, Affine affine, const Shortcut& shortcut, Activation act, float* out,
          int64_t pixels, int64_t channels) {
  // Each kind of shortcut has a loop of its own, so that none of them branches per vector.
  const float *x = shortcut.x, *scale = shortcut.affine.scale, *shift = shortcut.affine.shift;
  if (x == nullptr) {
    return join_with(y, affine, act, out, pixels, channels,
                     [](F u, int64_t, int64_t, auto) { return u; });
  }
  if (scale == nullptr) {
    return join_with(y, affine, act, out, pixels, channels,
                     [&](F u, int64_t i, int64_t, auto lanes) { return u + lanes.load(x + i); });
  }
  join_with(y, affine, act, out, pixels, channels, [&](F u, int64_t i, int64_t c, auto lanes) {
    return u + fma(lanes.load(x + i), lanes.load(scale + c), lanes.load(shift + c));
  });
}

// Global mean pooling, and its gradient: each pixel gets its share.
void average(const float* x, float* out, int64_t pixels, int64_t channels) {
  pixel_sums<1>(pixels, channels, out, [&](int64_t p, int64_t c, auto lanes, F* sum) {
    sum[0] = lanes.load(x + p * channels + c);
  });
  const F count = set(static_cast<float>(pixels));
  for_vectors(channels,
              [&](int64_t c, auto lanes) { lanes.store(out + c, lanes.load(out + c) / count); });
}

void average_backward(const float* dout, float* dx, int64_t pixels, int64_t channels) {
  const F count = set(static_cast<float>(pixels));
  for (int64_t p = 0; p < pixels; ++p, dx += channels) {
    for_vectors(channels,
                [&](int64_t c, auto lanes) { lanes.store(dx + c, lanes.load(dout + c) / count); });
  }
}

}  // namespace

void fill_conv_passes(ConvKernels& table) {
  table.moments = moments;
  table.pack = pack;
  table.pack_planes = pack_planes;
  table.norm_backward = norm_backward;
  table.join = join;
  table.average = average;
  table.average_backward = average_backward;
}

}  // namespace tutti::TUTTI_ISA
