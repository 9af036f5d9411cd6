// Causal attention of 16-bit activations by cuDNN's own graph API. ATen's cuDNN and flash backward
// passes are not repeatable; this one is, when it is asked to be. It is slow to compile, so it is
// alone in its file.
#pragma once

#include <c10/core/ScalarType.h>

#include "tensor/kernels.h"

namespace tutti {

/// Whether the functions below take a shape: bfloat16 or float16, dim a multiple of 8 up to 128,
/// length at least 64 (cuDNN refuses a backward pass of length 1, and short ones cost nothing
/// either way). It is a rule of shape and type alone.
bool cudnn_attends(at::ScalarType type, const AttentionShape& shape);

// Arrays are as in kernels.h, in the device's memory, and begin at multiples of 16 bytes; lse is
// the natural logarithm. The functions run on the current stream, with scratch from ATen's pool.
// The first call for a shape chooses and compiles its kernels and must not be captured; later calls
// only launch. They may be called from any thread and take turns. They throw Error where cuDNN is
// missing, too old, or refuses the shape.

void cudnn_attention(at::ScalarType type, const void* qkv, void* out, float* lse,
                     const AttentionShape& shape);
/// Repeatable. It takes about 2 bytes of scratch per score, batch * heads * length^2.
void cudnn_attention_backward(at::ScalarType type, const void* dout, const void* qkv,
                              const void* out, const float* lse, void* dqkv,
                              const AttentionShape& shape);

}  // namespace tutti
