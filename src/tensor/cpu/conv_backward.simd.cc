// The activation's gradient after a norm and a residual sum, together with the sums that the norm's
// own gradient needs.
#include "tensor/cpu/activation_math.h"
#include "tensor/cpu/conv_sums.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

struct Arrays {
  const float *dout, *out, *y, *mean;
  Affine affine;
  Shortcut shortcut;
  float *d, *sums;
  int64_t pixels, channels;
};

/// slope(u, offset, lanes) is the activation's derivative. A shortcut is added to u where `added`
/// is true, and has sums of its own where `scaled` is true.
template <bool added, bool scaled, typename Slope>
inline __attribute__((always_inline)) void backward(const Arrays& a, Slope&& slope) {
  pixel_sums<scaled ? 3 : 2>(
      a.pixels, a.channels, a.sums, [&](int64_t p, int64_t c, auto lanes, F* terms) {
        const int64_t i = p * a.channels + c;
        const F y = lanes.load(a.y + i);

        // u as join computed it. Where slope ignores it, the compiler drops these lines.
        F u = fma(y, lanes.load(a.affine.scale + c), lanes.load(a.affine.shift + c));
        if constexpr (scaled) {
          u = u + fma(lanes.load(a.shortcut.x + i), lanes.load(a.shortcut.affine.scale + c),
                      lanes.load(a.shortcut.affine.shift + c));
        } else if constexpr (added) {
          u = u + lanes.load(a.shortcut.x + i);
        }

        // d may be dout: the place is read before it is written.
        const F d = lanes.load(a.dout + i) * slope(u, i, lanes);
        lanes.store(a.d + i, d);
        terms[0] = d;
        terms[1] = d * (y - lanes.load(a.mean + c));
        if constexpr (scaled)
          terms[2] = d * (lanes.load(a.shortcut.x + i) - lanes.load(a.shortcut.mean + c));
      });
}

template <typename Slope>
void with_shortcut(const Arrays& a, Slope&& slope) {
  if (a.shortcut.x == nullptr) return backward<false, false>(a, slope);
  if (a.shortcut.affine.scale == nullptr) return backward<true, false>(a, slope);
  backward<true, true>(a, slope);
}

void join_backward(const float* dout, const float* out, const float* y, Affine affine,
                   const float* mean, const Shortcut& shortcut, Activation act, float* d,
                   float* sums, int64_t pixels, int64_t channels) {
  const Arrays a{dout, out, y, mean, affine, shortcut, d, sums, pixels, channels};
  if (act == Activation::kRelu && out != nullptr) {
    // ReLU's output tells where its input was positive, so nothing of u is read.
    const auto slope = [&](F, int64_t i, auto lanes) {
      return select(less(zero(), lanes.load(out + i)), one(), zero());
    };
    if (shortcut.x != nullptr && shortcut.affine.scale != nullptr)
      return backward<true, true>(a, slope);
    return backward<false, false>(a, slope);
  }
  activations::with_activation(act, [&](auto kind) {
    with_shortcut(a, [&](F u, int64_t, auto) { return kind.at(u).derivative; });
  });
}

}  // namespace

void fill_conv_backward(ConvKernels& table) { table.join_backward = join_backward; }

}  // namespace tutti::TUTTI_ISA
