// The products of a linear layer on a GPU, alone and with what stands beside them, by cuBLASLt and
// ATen's cuBLAS. 16-bit operands are summed in float32; float32 ones are never rounded to TF32.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets table.matmul and table.fused. The products run on the current stream of the calling thread
/// and need no scratch of the caller: cuBLAS keeps a workspace for each stream, taken from ATen's
/// pool by a thread's first product on it, and cuBLASLt plans a product when it first meets it (so
/// these must not be captured). Bits depend on the shape, and on the operands' alignment below 16
/// bytes.
template <class A>
void fill_matmul(KernelsFor<A>& table);

}  // namespace tutti
