// Keyed dropout for blocks under autograd, by the masks of the kernels that apply it elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/core/segment.h"
#include "tensor/kernels.h"

namespace tutti {

/// The mask's factors in the shape of `like`, float32 on its device: 0, or 1 / (1 - rate). All dims
/// of `like` but the last are rows. On a device it is drawn there, by Dropout::keys where they are
/// given.
at::Tensor keyed_mask(const Dropout& dropout, const at::Tensor& like);

}  // namespace tutti
