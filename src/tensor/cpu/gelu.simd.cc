// GELU with its derivative in one pass: both need the same exponential, so forward computes the derivative too and
// leaves it where the pre-activation was; backward is then one multiplication. Also the plain column passes: bias and
// column sums.
#include <cstring>

#include "tensor/cpu/tables.h"
#include "tensor/cpu/vec.h"

namespace tutti::TUTTI_ISA {

namespace {

struct Value {
  F gelu, derivative;
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
struct Exact {
  static Value at(F x) {
    const F e = exp(set(-0.5f) * x * x);
    const F tail = exact_tail(abs(x), e);
    const F phi = select(less(x, zero()), tail, set(1.0f) - tail);
    return {x * phi, fma(x * set(0.398942280f), e, phi)};
  }
};

// gelu = x s(2u) with the logistic s and u = sqrt(2/pi) (x + 0.044715 x^3); s' = s^2 e^(-2u).
struct Tanh {
  static Value at(F x) {
    const F xx = x * x;
    const F e = exp(x * fma(xx, set(-2 * 0.797884561f * 0.044715f), set(-2 * 0.797884561f)));
    const F s = set(1.0f) / (set(1.0f) + e);
    const F slope = fma(xx, set(6 * 0.797884561f * 0.044715f), set(2 * 0.797884561f));
    return {x * s, fma(x * slope, s * s * e, s)};
  }
};

template <typename Kind>
void rows_of(float* h, const float* bias, float* g, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, h += cols, g += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const Value v = Kind::at(lanes.load(h + c) + lanes.load(bias + c));
      lanes.store(g + c, v.gelu);
      lanes.store(h + c, v.derivative);
    });
  }
}

void bias_gelu(float* h, const float* bias, float* g, int64_t rows, int64_t cols, Gelu kind) {
  if (kind == Gelu::kExact) {
    rows_of<Exact>(h, bias, g, rows, cols);
  } else {
    rows_of<Tanh>(h, bias, g, rows, cols);
  }
}

void gelu_backward(const float* dg, const float* derivative, float* dh, float* dbias, int64_t rows, int64_t cols) {
  std::memset(dbias, 0, static_cast<size_t>(cols) * sizeof(float));
  for (int64_t r = 0; r < rows; ++r, dg += cols, derivative += cols, dh += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F d = lanes.load(dg + c) * lanes.load(derivative + c);
      lanes.store(dh + c, d);
      lanes.store(dbias + c, lanes.load(dbias + c) + d);
    });
  }
}

void add_bias(float* y, const float* bias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, y += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) { lanes.store(y + c, lanes.load(y + c) + lanes.load(bias + c)); });
  }
}

void column_sums(const float* x, float* sums, int64_t rows, int64_t cols) {
  std::memset(sums, 0, static_cast<size_t>(cols) * sizeof(float));
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) { lanes.store(sums + c, lanes.load(sums + c) + lanes.load(x + c)); });
  }
}

}  // namespace

void fill_gelu(Kernels& table) {
  table.bias_gelu = bias_gelu;
  table.gelu_backward = gelu_backward;
  table.add_bias = add_bias;
  table.column_sums = column_sums;
}

}  // namespace tutti::TUTTI_ISA
