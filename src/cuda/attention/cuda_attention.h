// Causal attention on a GPU: the bias, the kernels of either kind, and the sums of the gradients.
// 16-bit activations go to cuDNN where it takes their shape (cudnn_attention.h), all others to
// Tutti's own kernels (kernels/attention_kernels.h): a rule of type and shape alone.
#pragma once

#include "tensor/kernels.h"

namespace tutti {

/// Sets attention, attention_backward and attention_work (0: scratch comes from ATen's pool). lse
/// is the natural logarithm. Results are repeatable; with the own kernels a sample's bits do not
/// depend on the batch around it. For cuDNN arrays must begin at multiples of 16 bytes, and the
/// first call for a shape must not be captured. The kernels throw Error for a head above 256.
template <class A>
void fill_attention(KernelsFor<A>& table);

}  // namespace tutti
