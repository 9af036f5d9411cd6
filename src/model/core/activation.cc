// Activations for models under autograd. The hand-written kernels have their own of the same names.
#include "model/core/activation.h"

#include <ATen/ops/elu.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "base/error.h"
#include "config/enum_text.h"

namespace tutti {

/// ATen's functions, with the constants that torch.nn has by default.
at::Tensor activate(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::kGelu:
      return at::gelu(x, "none");
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kLeakyRelu:
      return at::leaky_relu(x, 0.01);
    case Activation::kElu:
      return at::elu(x);
    case Activation::kSwiglu:
      break;
  }
  throw Error(
      fmt::format("\"{}\" is no activation of an element: it is the gated layer of a gpt", kind));
}

}  // namespace tutti
