// The GPT: pre-norm blocks of attention and MLP with keyed dropout. By default GPT-2's; options of
// [model] make it Llama's.
//   "embed"     tok, pos (learned positions only)      tokens -> x
//   "blocks.i"  norm1, qkv, proj; norm2, fc1, fc2      x -> x, by the segments attention and mlp
//   "head"      norm, head                             x -> logits, then logits, targets -> loss
// Each has a .weight, and a .bias but for: bias = false (none has), RMS norms, tok, pos and a tied
// head. Weights are [out, in]. The rows of qkv are heads of queries, then kv_heads of keys, then as
// many of values; with swiglu those of fc1 are the gate, then what it is multiplied by. Forward and
// backward are written by hand on the memory of the Context; nothing is allocated in a step, but by
// a loss other than plain cross-entropy.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"
#include "tensor/kernels.h"

namespace tutti {

/// With activations of type A, where `kernels` run. With model.autograd the same model through ATen
/// and autograd (gpt_reference.h), which uses none of the kernels. With train.tensor_slices in that
/// many columns (gpt_slices.h): "logits" is then a column's slice of them. Throws Error for sizes
/// and names that do not make a GPT.
template <class A>
Model make_gpt(const Job& job, const KernelsFor<A>& kernels);

}  // namespace tutti
