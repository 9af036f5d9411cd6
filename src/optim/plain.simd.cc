// The passes of sgd, adagrad and rmsprop: the optimizers whose weight decay is part of
// the gradient.
#include "optim/gradient.h"

namespace tutti::TUTTI_ISA {
namespace {

/// kFirst starts the moment as the gradient, so the slot need not be read, nor be zero before.
template <Momentum kMomentum, bool kNesterov>
void sgd_pass(float* p, const float* g, float* m, int64_t n, const PlainScalars& s) {
  const Gradient gradient(s.gradient);
  const F decay = set(s.weight_decay), momentum = set(s.momentum), lr = set(s.lr);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const F value = lanes.load(p + i);
    F direction = fma(decay, value, gradient(lanes.load(g + i)));
    if constexpr (kMomentum != Momentum::kNone) {
      F moment = direction;
      if constexpr (kMomentum == Momentum::kNext)
        moment = fma(momentum, lanes.load(m + i), direction);
      lanes.store(m + i, moment);
      direction = kNesterov ? fma(momentum, moment, direction) : moment;
    }
    lanes.store(p + i, fnma(lr, direction, value));
  });
}

/// Without momentum Nesterov's rule is the plain one, so there is no such instance.
void sgd(float* p, const float* g, float* m, int64_t n, const PlainScalars& s, Momentum momentum,
         bool nesterov) {
  switch (momentum) {
    case Momentum::kNone:
      return sgd_pass<Momentum::kNone, false>(p, g, m, n, s);
    case Momentum::kFirst:
      return nesterov ? sgd_pass<Momentum::kFirst, true>(p, g, m, n, s)
                      : sgd_pass<Momentum::kFirst, false>(p, g, m, n, s);
    case Momentum::kNext:
      return nesterov ? sgd_pass<Momentum::kNext, true>(p, g, m, n, s)
                      : sgd_pass<Momentum::kNext, false>(p, g, m, n, s);
  }
}

/// The squares only grow, so an element's rate only falls.
void adagrad(float* p, const float* g, float* sum, int64_t n, const PlainScalars& s) {
  const Gradient gradient(s.gradient);
  const F decay = set(s.weight_decay), lr = set(s.lr), eps = set(s.eps);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const F value = lanes.load(p + i);
    const F direction = fma(decay, value, gradient(lanes.load(g + i)));

    const F squares = fma(direction, direction, lanes.load(sum + i));
    lanes.store(sum + i, squares);
    lanes.store(p + i, fnma(lr, direction / (sqrt(squares) + eps), value));
  });
}

/// As adagrad, but with a decaying mean of the squares; momentum is that of the scaled direction.
template <bool kMomentum>
void rmsprop_pass(float* p, const float* g, float* v, float* m, int64_t n, const PlainScalars& s) {
  const Gradient gradient(s.gradient);
  const F decay = set(s.weight_decay), lr = set(s.lr), eps = set(s.eps), momentum = set(s.momentum);
  const F beta2 = set(s.beta2), rest2 = set(s.rest2);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const F value = lanes.load(p + i);
    F direction = fma(decay, value, gradient(lanes.load(g + i)));

    const F squares = fma(beta2, lanes.load(v + i), rest2 * direction * direction);
    lanes.store(v + i, squares);
    direction = direction / (sqrt(squares) + eps);
    if constexpr (kMomentum) {
      direction = fma(momentum, lanes.load(m + i), direction);
      lanes.store(m + i, direction);
    }
    lanes.store(p + i, fnma(lr, direction, value));
  });
}

void rmsprop(float* p, const float* g, float* v, float* m, int64_t n, const PlainScalars& s) {
  return m == nullptr ? rmsprop_pass<false>(p, g, v, m, n, s)
                      : rmsprop_pass<true>(p, g, v, m, n, s);
}

}  // namespace

void fill_plain(UpdateKernels& kernels) {
  kernels.sgd = sgd;
  kernels.adagrad = adagrad;
  kernels.rmsprop = rmsprop;
}

}  // namespace tutti::TUTTI_ISA
