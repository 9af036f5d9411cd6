// Softmax cross-entropy on a GPU, as entries of the table of kernels.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets cross_entropy, cross_entropy_backward and cross_entropy_in_place. result and scale are in
/// the device's memory; a target outside the columns counts as none.
template <class A>
void fill_loss(KernelsFor<A>& table);

}  // namespace tutti
