// The GPT: pre-norm blocks, learned positions, biased linear layers, tied or untied head, exact or tanh GELU, keyed
// dropout.
//   "embed"     tok.weight, pos.weight                                        tokens -> x
//   "blocks.i"  norm1, qkv, proj; norm2, fc1, fc2 (.weight and .bias each)    x -> x, by the segments attention and mlp
//   "head"      norm, head (untied: with a bias)                              x -> logits, then logits, targets -> loss
// Weights are [out, in]. Forward and backward are written by hand on the memory of the Context; nothing is allocated in
// a step.
#pragma once

#include <cstdint>

#include "config/job.h"
#include "model/segment.h"
#include "tensor/kernels.h"

namespace tutti {

/// With config.autograd the same model through ATen and autograd (gpt_reference.h), which uses none of the kernels. The
/// config must be one that passed resolve().
Model make_gpt(const ModelConfig& config, int64_t micro_batch_size, const Kernels& kernels);

}  // namespace tutti
