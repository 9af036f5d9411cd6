// Activations of a vector, each with its derivative, since both need the same exponential. Only for
// *.simd.cc files.
#pragma once

#include "base/simd/vec.h"
#include "tensor/kernels.h"

namespace tutti::TUTTI_ISA::activations {

struct Value {
  F value, derivative;
};

// gelu = x Phi(x), gelu' = Phi(x) + x phi(x).
//   Phi(-|x|) = e^(-x^2/2) q(t) / 2
//   q(t)      = e^(z^2) erfc(z), z = |x| / sqrt 2, t = 1 / (1 + 0.3 z)
// q is fitted to a relative error of 2e-8 for z <= 9.9; past that the exponential is zero in
// float32. The tail keeps its relative precision, which 1 + erf would lose.
inline F exact_tail(F magnitude, F e) {
  const F t = set(1.0f) / fma(magnitude, set(0.212132034f), set(1.0f));
  constexpr float q[] = {-1.73907474e-05f, 0.169501338f,   0.168280685f, 0.159050483f,
                         0.185494045f,     -0.0422181296f, 0.487084255f, -0.468323698f,
                         0.46741465f,      -0.126266255f};
  return set(0.5f) * e * polynomial(t, q);
}
struct Gelu {
  static Value at(F x) {
    const F e = exp(set(-0.5f) * x * x);
    const F tail = exact_tail(abs(x), e);
    const F phi = select(less(x, zero()), tail, set(1.0f) - tail);
    return {x * phi, fma(x * set(0.398942280f), e, phi)};
  }
};

// gelu = x s(2u) with the logistic function s and u = sqrt(2/pi) (x + 0.044715 x^3); s' =
// s^2 e^(-2u).
struct GeluTanh {
  static Value at(F x) {
    const F xx = x * x;
    const F e = exp(x * fma(xx, set(-2 * 0.797884561f * 0.044715f), set(-2 * 0.797884561f)));
    const F s = set(1.0f) / (set(1.0f) + e);
    const F slope = fma(xx, set(6 * 0.797884561f * 0.044715f), set(2 * 0.797884561f));
    return {x * s, fma(x * slope, s * s * e, s)};
  }
};

struct Relu {
  static Value at(F x) {
    const M negative = less(x, zero());
    return {select(negative, zero(), x), select(less(zero(), x), one(), zero())};
  }
};

struct LeakyRelu {
  static Value at(F x) {
    const F slope = select(less(zero(), x), one(), set(0.01f));
    return {x * slope, slope};
  }
};

// s(x) = 1 / (1 + e^-x), s' = s^2 e^-x. The form s (1 - s) would lose the right tail.
struct Sigmoid {
  static Value at(F x) {
    const F e = exp(zero() - x);
    const F s = set(1.0f) / (set(1.0f) + e);
    return {s, s * s * e};
  }
};

// silu = x s(x), silu' = s + x s'.
struct Silu {
  static Value at(F x) {
    const Value s = Sigmoid::at(x);
    return {x * s.value, fma(x, s.derivative, s.value)};
  }
};

// Near zero this is the odd polynomial of Cephes; past that 1 - 2 / (1 + e^2|x|), which would lose
// small values.
struct Tanh {
  static Value at(F x) {
    constexpr float c[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                           2.06390887954e-2f, -5.70498872745e-3f};
    const F magnitude = abs(x), xx = x * x;
    const F small = fma(polynomial(xx, c) * xx, x, x);
    const F rest = set(2.0f) / (set(1.0f) + exp(magnitude + magnitude));  // 1 - |tanh x|
    const F large = set(1.0f) - rest;
    const M near = less(magnitude, set(0.625f));
    const F value = select(near, small, select(less(x, zero()), zero() - large, large));
    return {value, select(near, fnma(small, small, set(1.0f)), rest * (set(2.0f) - rest))};
  }
};

// e^x - 1 below zero. Near zero it is x times the rest of exp's own polynomial, so that the
// subtraction loses nothing.
struct Elu {
  static Value at(F x) {
    constexpr float c[] = {1.00000004f,   0.499999921f,  0.166664202f,
                           0.0416682256f, 0.0083748158f, 0.00138368457f};
    const F e = exp(x);
    const F below = select(less(set(-0.34f), x), x * polynomial(x, c), e - set(1.0f));
    const M positive = less(zero(), x);
    return {select(positive, x, below), select(positive, one(), e)};
  }
};

/// Calls body with the activation as a type.
template <typename Body>
inline __attribute__((always_inline)) void with_activation(Activation kind, Body&& body) {
  switch (kind) {
    case Activation::kGelu:
      return body(Gelu{});
    case Activation::kGeluTanh:
      return body(GeluTanh{});
    case Activation::kRelu:
      return body(Relu{});
    case Activation::kSilu:
      return body(Silu{});

    case Activation::kTanh:
      return body(Tanh{});
    case Activation::kSigmoid:
      return body(Sigmoid{});
    case Activation::kLeakyRelu:
      return body(LeakyRelu{});
    case Activation::kElu:
      return body(Elu{});
    case Activation::kSwiglu:
      break;  // a kernel of its own
  }
}

}  // namespace tutti::TUTTI_ISA::activations
