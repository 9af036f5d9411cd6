// Embedding and loss over slices of a vocabulary on a GPU, for models in columns.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets table.vocabulary. result and scale are in the device's memory.
template <class A>
void fill_vocabulary(KernelsFor<A>& table);

}  // namespace tutti
