// LAMB in two passes: the first moves the moments and measures the parameter and its direction, the
// second goes that way. The direction is computed twice: writing and reading it would cost more
// than the arithmetic.
#include "optim/gradient.h"

namespace tutti::TUTTI_ISA {
namespace {

/// The direction of a step, before its trust ratio: Adam's, with the decoupled weight decay.
struct Direction {
  explicit Direction(const MomentScalars& s)
      : decay(set(s.decay)),
        first(set(s.correction)),
        root(set(s.root_correction)),
        eps(set(s.eps)) {}
  F operator()(F value, F m, F v) const {
    return fma(decay, value, m * first / fma(sqrt(v), root, eps));
  }
  F decay, first, root, eps;
};

/// Sums of squares in double, where the squares of floats are exact. A group is 16 elements,
/// and element k of a group goes to accumulator k, on every code path and on a GPU: the
/// same bits.
class Squares {
 public:
  static constexpr int kGroup = 16;
  void add(int vector, F x) {
    D low, high;
    widen(x, low, high);
    sums_[2 * vector] = sums_[2 * vector] + low * low;
    sums_[2 * vector + 1] = sums_[2 * vector + 1] + high * high;
  }

  double value() const {
    double sums[kGroup];
    __builtin_memcpy(sums, sums_, sizeof(sums));
    for (int half = kGroup / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    return sums[0];
  }

 private:
  D sums_[2 * kGroup / kWidth] = {};
};

ChunkSquares measure(const float* p, const float* g, float* m, float* v, int64_t n,
                     const MomentScalars& s) {
  const Gradient gradient(s.gradient);
  const Direction direction(s);
  const F beta1 = set(s.beta1), rest1 = set(s.rest1), beta2 = set(s.beta2), rest2 = set(s.rest2);
  Squares of_parameter, of_direction;
  const auto body = [&](int64_t i, int vector, auto lanes) __attribute__((always_inline)) {
    const F value = lanes.load(p + i), slope = gradient(lanes.load(g + i));
    const F first_moment = fma(beta1, lanes.load(m + i), rest1 * slope);
    const F second_moment = fma(beta2, lanes.load(v + i), rest2 * slope * slope);
    lanes.store(m + i, first_moment);
    lanes.store(v + i, second_moment);
    of_parameter.add(vector, value);
    of_direction.add(vector, lanes.keep(direction(value, first_moment, second_moment)));
  };

  // Whole groups, then the tail, which goes on with accumulator 0. Lanes past the end add zeros.
  int64_t i = 0;
  for (; i + Squares::kGroup <= n; i += Squares::kGroup) {
#pragma clang loop unroll(full)
    for (int k = 0; k < Squares::kGroup / kWidth; ++k) body(i + k * kWidth, k, Whole{});
  }
  for (int k = 0; i < n; ++k, i += kWidth) body(i, k, Tail{first(n - i < kWidth ? n - i : kWidth)});
  return {of_parameter.value(), of_direction.value()};
}

void update(float* p, const float* m, const float* v, int64_t n, const MomentScalars& s) {
  const Direction direction(s);
  const F step_size = set(s.step_size);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const F value = lanes.load(p + i);
    lanes.store(p + i,
                fnma(step_size, direction(value, lanes.load(m + i), lanes.load(v + i)), value));
  });
}

}  // namespace

void fill_lamb(UpdateKernels& kernels) {
  kernels.lamb_measure = measure;
  kernels.lamb_update = update;
}

}  // namespace tutti::TUTTI_ISA
