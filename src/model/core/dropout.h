// Keyed dropout for blocks under autograd. The masks are those of the hand-written kernels, so both
// kinds of a model drop the same elements.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/core/segment.h"
#include "tensor/kernels.h"

namespace tutti {

/// The mask's factors in the shape of `like`, float32 on its device: 0, or 1 / (1 - rate). All dims
/// of `like` but the last are taken as rows. On a device it is drawn there, by Dropout::keys if
/// they are given.
at::Tensor keyed_mask(const Dropout& dropout, const at::Tensor& like);

}  // namespace tutti
