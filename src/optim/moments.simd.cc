// The passes of adam, adamw and lion: the optimizers of MomentScalars that need no second pass.
#include "optim/gradient.h"

namespace tutti::TUTTI_ISA {
namespace {

/// The weight decay is part of the gradient (adam), or shrinks the value by itself
/// (kDecoupled: adamw).
template <bool kDecoupled>
void adam_pass(float* p, const float* g, float* m, float* v, int64_t n, const MomentScalars& s) {
  const Gradient gradient(s.gradient);
  const F decay = set(s.decay), beta1 = set(s.beta1), rest1 = set(s.rest1), beta2 = set(s.beta2),
          rest2 = set(s.rest2);
  const F correction = set(s.root_correction), eps = set(s.eps), step_size = set(s.step_size);
  for_vectors(n, [&](int64_t i, auto lanes) {
    F value = lanes.load(p + i), direction = gradient(lanes.load(g + i));
    if constexpr (!kDecoupled) direction = fma(decay, value, direction);

    const F first_moment = fma(beta1, lanes.load(m + i), rest1 * direction);
    const F second_moment = fma(beta2, lanes.load(v + i), rest2 * direction * direction);
    lanes.store(m + i, first_moment);
    lanes.store(v + i, second_moment);

    // The bias corrections are in step_size and root_correction, so they cost nothing per element.
    if constexpr (kDecoupled) value = value * decay;
    const F divisor = fma(sqrt(second_moment), correction, eps);
    lanes.store(p + i, fnma(step_size, first_moment / divisor, value));
  });
}

/// -1, 0 or 1; 0 for NaN.
F sign(F x) { return select(less(zero(), x), set(1), select(less(x, zero()), set(-1), zero())); }

/// The step follows the sign of one mixture of moment and gradient; the moment is kept as another.
void lion(float* p, const float* g, float* m, int64_t n, const MomentScalars& s) {
  const Gradient gradient(s.gradient);
  const F decay = set(s.decay), beta1 = set(s.beta1), rest1 = set(s.rest1), beta2 = set(s.beta2),
          rest2 = set(s.rest2);
  const F step_size = set(s.step_size);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const F direction = gradient(lanes.load(g + i)), moment = lanes.load(m + i);
    const F chosen = sign(fma(beta1, moment, rest1 * direction));
    lanes.store(m + i, fma(beta2, moment, rest2 * direction));
    lanes.store(p + i, fnma(step_size, chosen, lanes.load(p + i) * decay));
  });
}

}  // namespace

void fill_moments(UpdateKernels& kernels) {
  kernels.adam = adam_pass<false>;
  kernels.adamw = adam_pass<true>;
  kernels.lion = lion;
}

}  // namespace tutti::TUTTI_ISA
