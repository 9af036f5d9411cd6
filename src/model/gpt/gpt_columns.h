// The GPT defined in S = train.tensor_slices columns (tensor and sequence parallelism): matmuls are
// cut by heads, hidden units and tokens, and everything that works row by row is cut by rows of the
// residual stream. R = batch * length rows of width W; column c has rows [c R/S, (c + 1) R/S).
//   "embed"     embed      tokens -> part [R, W], summed and scattered
//                          (the rows of its V/S tokens, else zeros)
//               position   part -> x [R/S, W]
//   "blocks.i"  norm1      x -> normed [R/S, W], gathered; x
//               attention  normed [R, W], x -> part, scattered; x
//                          (its heads: qkv cut by rows, proj by columns)
//               join1      part, x -> normed, gathered; x + part
//               mlp        normed, x -> part, scattered; x
//                          (its hidden units)
//               join2      part, x -> x + part
//   "head"      norm       x -> normed, gathered
//               logits     normed, targets -> logits [R, V/S]; statistics [R, 3], gathered
//               loss       logits, statistics [S, R, 3], targets -> loss
// Blocks of column c > 0 are named "blocks.i.slicec". Parameters are the whole model's, cut. Norms,
// positions and the biases that are added to sums belong to column 0; the other columns share them,
// each with the gradient of its rows.
#pragma once

#include <vector>

#include "config/job.h"
#include "model/core/segment.h"
#include "model/gpt/gpt_segments.h"
#include "model/gpt/gpt_shape.h"

namespace tutti {

/// Makes all blocks, layer by layer and within a layer column by column. Throws Error with every
/// reason why the model cannot be cut.
template <class A>
std::vector<Block> gpt_column_blocks(const Job& job, const GptShape& shape,
                                     const KernelsFor<A>& kernels, const RotaryTable& rotary);

}  // namespace tutti
