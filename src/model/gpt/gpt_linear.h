// The linear layers of the GPT together with the operations around them (bias, residual,
// activation): in one kernel where the device has one, else in several. On the CPU it is
// always several.
#pragma once

#include "model/gpt/gpt_segments.h"

namespace tutti {

/// A layer of a segment that is running, from [rows, in] to [rows, out]. `scratch` is for matmuls.
template <class A>
struct GptLinear {
  const Context& context;
  const KernelsFor<A>& kernels;
  const FusedFor<A>& fused;  // the fused kernels that may be used
  GptPlace place;
  int64_t rows, out, in;
  float* scratch;

  /// y = x weight^T. Returns the bias if it is still to be added, and null if it is in y already or
  /// there is none.
  const float* forward(const A* x, A* y) const {
    if (has_bias() && fused.linear != nullptr &&
        fused.linear(x, weights(), low_bias(), nullptr, y, rows, out, in))
      return nullptr;
    kernels.matmul.nt(x, weights(), y, rows, out, in, scratch);
    return bias();
  }

  /// y = x weight^T in float32, as a partial sum over columns.
  void forward_sums(const A* x, float* y) const {
    kernels.matmul.nt_sums(x, weights(), y, rows, out, in, scratch);
  }

  /// y = residual + dropout(x weight^T + bias).
  void forward_residual(const A* x, const A* residual, A* y, const Dropout& dropout) const {
    if (dropout.rate == 0 && fused.linear != nullptr &&
        fused.linear(x, weights(), low_bias(), residual, y, rows, out, in))
      return;
    kernels.matmul.nt(x, weights(), y, rows, out, in, scratch);
    kernels.bias_residual(y, bias(), residual, y, rows, out, &dropout);
  }

  /// active = f(x weight^T + bias); `left` is kept for activation_backward.
  void forward_activation(const A* x, A* left, A* active, Activation kind) const {
    if (fused.linear_activation != nullptr &&
        fused.linear_activation(x, weights(), low_bias(), left, active, rows, out, in, kind))
      return;
    kernels.matmul.nt(x, weights(), left, rows, out, in, scratch);
    kernels.bias_activation(left, bias(), active, rows, out, kind);
  }

  /// dx = dy weight.
  void backward(const A* dy, A* dx) const {
    kernels.matmul.nn(dy, weights(), dx, rows, in, out, scratch);
  }
  /// dx = dy weight in float32, as a partial sum over columns.
  void backward_sums(const A* dy, float* dx) const {
    kernels.matmul.nn_sums(dy, weights(), dx, rows, in, out, scratch);
  }

  /// dleft = (dy weight) f'(left) for the activation before this layer; the bias before it gets
  /// dbias (may be null).
  void backward_activation(const A* dy, const A* left, A* dleft, float* dbias,
                           Activation kind) const {
    if (fused.linear_activation_backward != nullptr &&
        fused.linear_activation_backward(dy, weights(), left, dleft, rows, out, in, kind)) {
      if (dbias != nullptr) kernels.column_sums(dleft, dbias, rows, in);
      return;
    }
    backward(dy, dleft);
    kernels.activation_backward(dleft, left, dleft, dbias, rows, in, kind);
  }

  /// The weight's gradient, dy^T x.
  void backward_weight(const A* dy, const A* x) const {
    kernels.matmul.tn(dy, x, floats(context.gradients, place.weight), out, in, rows, scratch);
  }

 private:
  bool has_bias() const { return place.bias != kNoPlace; }
  const A* weights() const { return weight<A>(context, place.weight); }
  const float* bias() const { return floats(context.parameters, place.bias); }
  const A* low_bias() const { return has_bias() ? weight<A>(context, place.bias) : nullptr; }
};

}  // namespace tutti
