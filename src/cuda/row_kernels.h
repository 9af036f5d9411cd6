// The elementwise and row-wise kernels on a GPU (src/cuda/kernels) as entries of the table
// of kernels.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets norms, biases, column sums, dropout, activations, rotary positions and embedding: all of
/// the table except matmuls, attention, loss and the slices of a vocabulary. Each runs on the
/// thread's current stream, with scratch from ATen's pool.
template <class A>
void fill_rows(KernelsFor<A>& table);

}  // namespace tutti
