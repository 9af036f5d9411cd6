// The GPT: pre-norm blocks of attention and MLP with keyed dropout. By default it is GPT-2's;
// options of [model] make it Llama's.
//   "embed"     tok, pos (learned positions only)      tokens -> x
//   "blocks.i"  norm1, qkv, proj; norm2, fc1, fc2      x -> x, by the segments attention and mlp
//   "head"      norm, head                             x -> logits, then logits, targets -> loss
// Each of these has a .weight, and a .bias except: with bias = false none has one, and RMS norms,
// tok, pos and a tied head never have. Weights are [out, in]. The rows of qkv are `heads` heads of
// queries, then kv_heads of keys, then as many of values; with swiglu the rows of fc1 are the gate,
// then what it is multiplied by. Forward and backward are written by hand on the memory of the
// Context. Nothing is allocated in a step, except by a loss other than plain cross-entropy.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"
#include "tensor/kernels.h"

namespace tutti {

/// Makes the model with activations of type A, on the processor where `kernels` run. With
/// model.autograd it is the same model through ATen and autograd (gpt_reference.h), which uses
/// none of the kernels. With train.tensor_slices it is made in that many columns (gpt_columns.h);
/// "logits" is then a column's slice of them. Throws Error for sizes and names that do not make
/// a GPT.
template <class A>
Model make_gpt(const Job& job, const KernelsFor<A>& kernels);

}  // namespace tutti
