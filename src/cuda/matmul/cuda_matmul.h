// The products of a linear layer on a GPU, alone and fused with the work next to them, by
// cuBLASLt and ATen's cuBLAS. 16-bit operands are summed in float32; float32 operands are never
// rounded to TF32.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets table.matmul and table.fused. The products run on the current stream of the calling thread
/// and need no scratch of the caller. The first product of a thread on a stream must not be
/// captured, nor the first of a shape: cuBLAS then takes a workspace for the stream from ATen's
/// pool, and cuBLASLt plans the product. Bits depend on the shape, and on the operands' alignment
/// below 16 bytes.
template <class A>
void fill_matmul(KernelsFor<A>& table);

}  // namespace tutti
