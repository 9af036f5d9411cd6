// Activations by the names that model.activation takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tutti {

/// gelu, gelu-tanh, relu, silu, tanh, sigmoid, leaky-relu (slope 0.01) or elu of every element,
/// under autograd. Throws Error for another name, with the nearest.
at::Tensor activate(const std::string& name, const at::Tensor& x);

}  // namespace tutti
