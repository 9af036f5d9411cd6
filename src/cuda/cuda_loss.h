// Softmax cross-entropy on a GPU.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets cross_entropy, cross_entropy_backward and cross_entropy_in_place. result and scale lie in
/// the device's memory; a target that is no column counts as none.
template <class A>
void fill_loss(KernelsFor<A>& table);

}  // namespace tutti
