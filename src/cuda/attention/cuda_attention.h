// Causal attention on a GPU: bias, the kernels of either kind, and the sums of the gradients.
// 16-bit activations with heads that are multiples of 8 up to 128 go to cuDNN (cudnn_attention.h),
// all others to Tutti's own kernels (kernels/attention.h): a rule of type and shape alone.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets attention, attention_backward and attention_work (0: scratch comes from ATen's pool). lse
/// is the natural logarithm. Repeatable; with the own kernels a sample's bits do not depend on the
/// batch around it. For cuDNN arrays lie on borders of 16 bytes, and the first call of a shape must
/// not be captured. Throw Error for a head above 256.
template <class A>
void fill_attention(KernelsFor<A>& table);

}  // namespace tutti
