// Activations of one number with their derivatives, in float32: the formulas of
// tensor/cpu/activation_math.h, which gives their reasons. `fast` uses the hardware's exponential
// and division, whose errors (below 1e-5) vanish in the rounding to 16 bits.
#pragma once

#include <type_traits>

#include "cuda/kernels/common.cuh"

namespace tutti::rows {

struct Value {
  float value, derivative;
};

/// e^x, with x held within [-87.3, 88]. NaN stays NaN, since it fails both comparisons.
template <bool fast>
__device__ float held_exp(float x) {
  x = x < -87.3f ? -87.3f : x > 88.0f ? 88.0f : x;
  return fast ? __expf(x) : expf(x);
}
template <bool fast>
__device__ float quotient(float a, float b) {
  return fast ? __fdividef(a, b) : a / b;
}
template <int n>
__device__ float polynomial(float x, const float (&c)[n]) {
  float y = c[n - 1];
#pragma unroll
  for (int i = n - 2; i >= 0; --i) y = fmaf(y, x, c[i]);
  return y;
}

/// x Phi(x), with the tail of Phi from a polynomial.
template <bool fast>
__device__ Value gelu(float x) {
  constexpr float q[] = {-1.73907474e-05f, 0.169501338f,   0.168280685f, 0.159050483f,
                         0.185494045f,     -0.0422181296f, 0.487084255f, -0.468323698f,
                         0.46741465f,      -0.126266255f};
  const float e = held_exp<fast>(-0.5f * x * x);
  const float t = quotient<fast>(1.0f, fmaf(fabsf(x), 0.212132034f, 1.0f));
  const float tail = 0.5f * e * polynomial(t, q);
  const float phi = x < 0 ? tail : 1.0f - tail;
  return {x * phi, fmaf(x * 0.398942280f, e, phi)};
}

/// x s(2u), as GPT-2 approximates GELU.
template <bool fast>
__device__ Value gelu_tanh(float x) {
  const float xx = x * x;
  const float e = held_exp<fast>(x * fmaf(xx, -2 * 0.797884561f * 0.044715f, -2 * 0.797884561f));
  const float s = quotient<fast>(1.0f, 1.0f + e);
  const float slope = fmaf(xx, 6 * 0.797884561f * 0.044715f, 2 * 0.797884561f);
  return {x * s, fmaf(x * slope, s * s * e, s)};
}

template <bool fast>
__device__ Value sigmoid(float x) {
  const float e = held_exp<fast>(-x);
  const float s = quotient<fast>(1.0f, 1.0f + e);
  return {s, s * s * e};
}

template <bool fast>
__device__ Value silu(float x) {
  const Value s = sigmoid<fast>(x);
  return {x * s.value, fmaf(x, s.derivative, s.value)};
}

template <bool fast>
__device__ Value tanh_of(float x) {
  constexpr float c[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                         2.06390887954e-2f, -5.70498872745e-3f};
  const float magnitude = fabsf(x), xx = x * x;
  const float small = fmaf(polynomial(xx, c) * xx, x, x);
  // rest = 1 - |tanh x|
  const float rest = quotient<fast>(2.0f, 1.0f + held_exp<fast>(magnitude + magnitude));
  const float large = 1.0f - rest;
  const bool near = magnitude < 0.625f;
  return {near    ? small
          : x < 0 ? -large
                  : large,
          near ? fmaf(-small, small, 1.0f) : rest * (2.0f - rest)};
}

template <bool fast>
__device__ Value elu(float x) {
  constexpr float c[] = {1.00000004f,   0.499999921f,  0.166664202f,
                         0.0416682256f, 0.0083748158f, 0.00138368457f};
  const float e = held_exp<fast>(x);
  const float below = -0.34f < x ? x * polynomial(x, c) : e - 1.0f;
  return {x > 0 ? x : below, x > 0 ? 1.0f : e};
}

/// The activation `kind` of x, chosen when the kernel is compiled.
template <Activation kind, bool fast>
__device__ Value activated(float x) {
  if constexpr (kind == Activation::kGelu) return gelu<fast>(x);
  if constexpr (kind == Activation::kGeluTanh) return gelu_tanh<fast>(x);
  if constexpr (kind == Activation::kRelu) return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};
  if constexpr (kind == Activation::kSilu) return silu<fast>(x);
  if constexpr (kind == Activation::kTanh) return tanh_of<fast>(x);
  if constexpr (kind == Activation::kSigmoid) return sigmoid<fast>(x);
  if constexpr (kind == Activation::kLeakyRelu) {
    const float slope = x > 0 ? 1.0f : 0.01f;
    return {x * slope, slope};
  }
  if constexpr (kind == Activation::kElu) return elu<fast>(x);
}

/// Whether A's rounding hides the errors of the hardware's fast functions.
template <class A>
constexpr bool kFast = sizeof(A) == 2;

/// Calls body with the activation as a type.
template <class Body>
void with_activation(Activation kind, Body&& body) {
  const auto as = [&]<Activation its>() { body(std::integral_constant<Activation, its>{}); };
  switch (kind) {
    case Activation::kGelu:
      return as.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return as.template operator()<Activation::kGeluTanh>();
    case Activation::kRelu:
      return as.template operator()<Activation::kRelu>();
    case Activation::kSilu:
      return as.template operator()<Activation::kSilu>();

    case Activation::kTanh:
      return as.template operator()<Activation::kTanh>();
    case Activation::kSigmoid:
      return as.template operator()<Activation::kSigmoid>();
    case Activation::kLeakyRelu:
      return as.template operator()<Activation::kLeakyRelu>();
    case Activation::kElu:
      return as.template operator()<Activation::kElu>();
  }
}

}  // namespace tutti::rows
