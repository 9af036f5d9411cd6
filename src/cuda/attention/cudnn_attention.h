// Causal attention of 16-bit activations by cuDNN's own graph API: ATen's cuDNN and flash backward
// passes are not repeatable, and this one is where it is asked to be. Slow to compile, so it is
// alone in its file.
#pragma once

#include <c10/core/ScalarType.h>

#include "tensor/kernels.h"

namespace tutti {

/// Whether the functions below take it: bfloat16 or float16, dim a multiple of 8 up to 128, length
/// at least 64 (cuDNN refuses a backward pass of length 1, and short ones cost nothing either way).
/// A rule of shape and type alone.
bool cudnn_attends(at::ScalarType type, const AttentionShape& shape);

// Arrays as in kernels.h, in the device's memory, on borders of 16 bytes; lse is the natural
// logarithm. They run on the current stream, with scratch from ATen's pool. The first call of a
// shape chooses and compiles its kernels (not to be captured); later ones only launch. From any
// thread, one at a time. Throw Error where cuDNN is missing, too old, or refuses the shape.

void cudnn_attention(at::ScalarType type, const void* qkv, void* out, float* lse,
                     const AttentionShape& shape);
/// Repeatable. Scratch: about 2 bytes for each score, batch * heads * length^2.
void cudnn_attention_backward(at::ScalarType type, const void* dout, const void* qkv,
                              const void* out, const float* lse, void* dqkv,
                              const AttentionShape& shape);

}  // namespace tutti
