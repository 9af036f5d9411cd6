// A convolutional network for images: a stem, stages of (residual) blocks of which each but the
// first halves the image, and a linear head.
//   stem        3 x 3 convolution, norm, activation, 2 x 2 pool
//   stages.S.D  residual: 3 x 3 convolution, norm, activation, 3 x 3 convolution, norm; plus the
//               block's input (by a 1 x 1 convolution and a norm of its own where the shape
//               changes); activation.
//               else: 3 x 3 convolution, norm, activation.
//               Stages after the first begin with a stride of 2.
//   head        mean over the pixels, dropout, linear
// Convolutions have biases only with norm = "none". The norms are
//   batch  running statistics are buffers, with momentum 0.1
//   group  8 groups, or the largest number of groups that divides both 8 and the channels
//   layer  one group
// There are two kinds that agree in parameters and function: hand-written segments, and the same
// from ATen operations under autograd (model.autograd).
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// With train.tensor_slices > 1 it has as many columns, under autograd (model/core/column_block.h).
/// Throws Error for what such a network cannot have: an image too small for the stem's pool, rms
/// norm, channels and classes that cannot be cut.
Model make_cnn(const Job& job);

}  // namespace tutti
