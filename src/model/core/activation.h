// Activations as model.activation names them.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/enums.h"

namespace tutti {

/// Activates every element, under autograd. Throws Error for swiglu, which is a layer.
at::Tensor activate(Activation kind, const at::Tensor& x);

}  // namespace tutti
