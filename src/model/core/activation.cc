// Activations for models under autograd. The hand-written kernels have their own of the same names.
#include "model/core/activation.h"

#include <ATen/ops/elu.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "config/nearest.h"

namespace tutti {

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "gelu") return at::gelu(x, "none");
  if (name == "gelu-tanh") return at::gelu(x, "tanh");
  if (name == "relu") return at::relu(x);
  if (name == "silu") return at::silu(x);
  if (name == "tanh") return at::tanh(x);
  if (name == "sigmoid") return at::sigmoid(x);
  if (name == "leaky-relu") return at::leaky_relu(x, 0.01);
  if (name == "elu") return at::elu(x);

  // An unknown name: offer the nearest, or all of them if none is near.
  const std::vector<std::string> names = {"gelu", "gelu-tanh", "relu",       "silu",
                                          "tanh", "sigmoid",   "leaky-relu", "elu"};
  const std::string near = nearest(name, names);
  throw Error(
      near.empty()
          ? fmt::format("\"{}\" is no activation here; there are {}", name, fmt::join(names, ", "))
          : fmt::format("\"{}\" is no activation here; did you mean {}?", name, near));
}

}  // namespace tutti
