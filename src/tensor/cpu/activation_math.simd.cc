// Activations forward and backward, and the plain column passes (bias, column sums). Value and
// derivative need the same exponential, so forward computes the derivative too and leaves it where
// the pre-activation was; backward is then one multiplication. SwiGLU's gate works the same way,
// with two factors.
#include "tensor/cpu/activation_math.h"

#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

using activations::Silu;
using activations::Value;

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

void bias_activation(float* h, const float* bias, float* g, int64_t rows, int64_t cols,
                     Activation kind) {
  activations::with_activation(kind, [&](auto f) { rows_of<decltype(f)>(h, bias, g, rows, cols); });
}

void activation_backward(const float* dg, const float* derivative, float* dh, float* dbias,
                         int64_t rows, int64_t cols, Activation) {
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

      // Both derivatives of silu(gate) * up are left, in the places of gate and up.
      lanes.store(g + c, gate.value * u);
      lanes.store(h + c, gate.derivative * u);
      lanes.store(up + c, gate.value);
    });
  }
}

void swiglu_backward(const float* dg, const float* derivative, float* dh, float* dbias,
                     int64_t rows, int64_t cols) {
  clear(dbias, 2 * cols);
  for (int64_t r = 0; r < rows; ++r, dg += cols, derivative += 2 * cols, dh += 2 * cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F d = lanes.load(dg + c);
      const F gate = d * lanes.load(derivative + c), up = d * lanes.load(derivative + cols + c);

      // dh may be `derivative`: both factors were read above.
      lanes.store(dh + c, gate);
      lanes.store(dh + cols + c, up);
      add_to(dbias, c, gate, lanes);
      add_to(dbias, cols + c, up, lanes);
    });
  }
}

void add_bias(float* y, const float* bias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, y += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(y + c, lanes.load(y + c) + lanes.load(bias + c));
    });
  }
}

// Rows are added one after the other, so a column's sum is one chain.
void column_sums(const float* x, float* sums, int64_t rows, int64_t cols) {
  clear(sums, cols);
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(sums + c, lanes.load(sums + c) + lanes.load(x + c));
    });
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
