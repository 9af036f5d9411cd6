// Activations with their derivatives in one pass: both need the same exponential, so forward computes the derivative
// too and leaves it where the pre-activation was; backward is then one multiplication. The gate of SwiGLU is one of
// them with two factors. Also the plain column passes: bias and column sums.
#include "tensor/cpu/tables.h"
#include "tensor/cpu/vec.h"

namespace tutti::TUTTI_ISA {

namespace {

struct Value {
  F value, derivative;
};

// gelu = x Phi(x), gelu' = Phi(x) + x phi(x). Phi(-|x|) = e^(-x^2/2) q(t) / 2 with q(t) = e^(z^2) erfc(z), z = |x| /
// sqrt 2, t = 1 / (1 + 0.3 z), q fitted to a relative error of 2e-8 for z <= 9.9; past that the exponential is zero.
// The tail keeps its relative precision, which 1 + erf would lose.
inline F exact_tail(F magnitude, F e) {
  const F t = set(1.0f) / fma(magnitude, set(0.212132034f), set(1.0f));
  constexpr float q[] = {-1.73907474e-05f, 0.169501338f, 0.168280685f,  0.159050483f, 0.185494045f,
                         -0.0422181296f,   0.487084255f, -0.468323698f, 0.46741465f,  -0.126266255f};
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

// gelu = x s(2u) with the logistic s and u = sqrt(2/pi) (x + 0.044715 x^3); s' = s^2 e^(-2u).
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
    return {select(negative, zero(), x), select(less(zero(), x), set(1.0f), zero())};
  }
};

struct LeakyRelu {
  static Value at(F x) {
    const F slope = select(less(zero(), x), set(1.0f), set(0.01f));
    return {x * slope, slope};
  }
};

// s(x) = 1 / (1 + e^-x), s' = s^2 e^-x: 1 - s would lose the right tail.
struct Sigmoid {
  static Value at(F x) {
    const F e = exp(zero() - x);
    const F s = set(1.0f) / (set(1.0f) + e);
    return {s, s * s * e};
  }
};

// x s(x), s + x s'
struct Silu {
  static Value at(F x) {
    const Value s = Sigmoid::at(x);
    return {x * s.value, fma(x, s.derivative, s.value)};
  }
};

// Near zero the odd polynomial of Cephes, past that 1 - 2 / (1 + e^2|x|), which would lose the small ones.
struct Tanh {
  static Value at(F x) {
    constexpr float c[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f, 2.06390887954e-2f,
                           -5.70498872745e-3f};
    const F magnitude = abs(x), xx = x * x;
    const F small = fma(polynomial(xx, c) * xx, x, x);
    const F rest = set(2.0f) / (set(1.0f) + exp(magnitude + magnitude));  // 1 - |tanh x|
    const F large = set(1.0f) - rest;
    const M near = less(magnitude, set(0.625f));
    const F value = select(near, small, select(less(x, zero()), zero() - large, large));
    return {value, select(near, fnma(small, small, set(1.0f)), rest * (set(2.0f) - rest))};
  }
};

// e^x - 1 below zero: near it x times the rest of exp's own polynomial, so that nothing is lost by the subtraction.
struct Elu {
  static Value at(F x) {
    constexpr float c[] = {1.00000004f, 0.499999921f, 0.166664202f, 0.0416682256f, 0.0083748158f, 0.00138368457f};
    const F e = exp(x);
    const F below = select(less(set(-0.34f), x), x * polynomial(x, c), e - set(1.0f));
    const M positive = less(zero(), x);
    return {select(positive, x, below), select(positive, set(1.0f), e)};
  }
};

template <typename Kind>
void rows_of(float* h, const float* bias, float* g, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, h += cols, g += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const Value v = Kind::at(lanes.load(h + c) + load_or_zero(bias, c, lanes));
      lanes.store(g + c, v.value);
      lanes.store(h + c, v.derivative);
    });
  }
}

void bias_activation(float* h, const float* bias, float* g, int64_t rows, int64_t cols, Activation kind) {
  switch (kind) {
    case Activation::kGelu:
      return rows_of<Gelu>(h, bias, g, rows, cols);
    case Activation::kGeluTanh:
      return rows_of<GeluTanh>(h, bias, g, rows, cols);
    case Activation::kRelu:
      return rows_of<Relu>(h, bias, g, rows, cols);
    case Activation::kSilu:
      return rows_of<Silu>(h, bias, g, rows, cols);
    case Activation::kTanh:
      return rows_of<Tanh>(h, bias, g, rows, cols);
    case Activation::kSigmoid:
      return rows_of<Sigmoid>(h, bias, g, rows, cols);
    case Activation::kLeakyRelu:
      return rows_of<LeakyRelu>(h, bias, g, rows, cols);
    case Activation::kElu:
      return rows_of<Elu>(h, bias, g, rows, cols);
  }
}

void activation_backward(const float* dg, const float* derivative, float* dh, float* dbias, int64_t rows,
                         int64_t cols) {
  clear(dbias, cols);
  for (int64_t r = 0; r < rows; ++r, dg += cols, derivative += cols, dh += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F d = lanes.load(dg + c) * lanes.load(derivative + c);
      lanes.store(dh + c, d);
      add_to(dbias, c, d, lanes);
    });
  }
}

void bias_swiglu(float* h, const float* bias, float* g, int64_t rows, int64_t cols) {
  const float* up_bias = bias == nullptr ? nullptr : bias + cols;
  for (int64_t r = 0; r < rows; ++r, h += 2 * cols, g += cols) {
    float* up = h + cols;
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const Value gate = Silu::at(lanes.load(h + c) + load_or_zero(bias, c, lanes));
      const F u = lanes.load(up + c) + load_or_zero(up_bias, c, lanes);
      lanes.store(g + c, gate.value * u);
      lanes.store(h + c, gate.derivative * u);
      lanes.store(up + c, gate.value);
    });
  }
}

void swiglu_backward(const float* dg, const float* derivative, float* dh, float* dbias, int64_t rows, int64_t cols) {
  clear(dbias, 2 * cols);
  for (int64_t r = 0; r < rows; ++r, dg += cols, derivative += 2 * cols, dh += 2 * cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F d = lanes.load(dg + c);
      const F gate = d * lanes.load(derivative + c), up = d * lanes.load(derivative + cols + c);
      lanes.store(dh + c, gate);
      lanes.store(dh + cols + c, up);
      add_to(dbias, c, gate, lanes);
      add_to(dbias, cols + c, up, lanes);
    });
  }
}

void add_bias(float* y, const float* bias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, y += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) { lanes.store(y + c, lanes.load(y + c) + lanes.load(bias + c)); });
  }
}

void column_sums(const float* x, float* sums, int64_t rows, int64_t cols) {
  clear(sums, cols);
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) { lanes.store(sums + c, lanes.load(sums + c) + lanes.load(x + c)); });
  }
}

}  // namespace

void fill_activation(Kernels& table) {
  table.bias_activation = bias_activation;
  table.activation_backward = activation_backward;
  table.bias_swiglu = bias_swiglu;
  table.swiglu_backward = swiglu_backward;
  table.add_bias = add_bias;
  table.column_sums = column_sums;
}

}  // namespace tutti::TUTTI_ISA
