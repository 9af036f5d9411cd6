// The gradient of the logits by which a test continues a graph of torch's: the loss's own bits are
// not torch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "tensor/log_softmax.h"

namespace tutti {

/// Of the plain cross-entropy of logits [rows, classes], where every row has a target.
inline at::Tensor logit_gradient(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor x = logits.detach().contiguous(), log_p = at::empty_like(x),
                   gradient = at::zeros_like(x);
  log_softmax(x.const_data_ptr<float>(), 1, log_p.mutable_data_ptr<float>(), x.size(0), x.size(1));
  for (int64_t r = 0; r < x.size(0); ++r)
    gradient.mutable_data_ptr<float>()[r * x.size(1) + targets[r].item<int64_t>()] = -1;
  log_softmax_backward(gradient.const_data_ptr<float>(), log_p.const_data_ptr<float>(),
                       gradient.mutable_data_ptr<float>(), x.size(0), x.size(1));
  return gradient;
}

}  // namespace tutti
