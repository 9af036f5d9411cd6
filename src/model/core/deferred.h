// What the two parts of a hand-written backward hand to each other through Context::deferred.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "model/core/segment.h"
#include "model/gpt/gpt_segments.h"

namespace tutti {

/// Copies a tensor to memory of the same kind: a gradient that the weight part needs and would not
/// find again.
void defer(const at::Tensor& tensor, void* to);

/// Gradients that kernels of the input part make beside what they are called for: those of norms
/// and biases. A backward in one part writes them where they belong; else they lie in deferred
/// memory until the weight part hands them over.
class SideGradients {
 public:
  /// Of the parameter at this place of its block's list; kNone takes no memory.
  struct Side {
    int place;
    int64_t size;
  };
  explicit SideGradients(Tensors gradients) : gradients_(gradients) {}
  SideGradients(std::initializer_list<Side> sides, Carver& memory);
  void add(Side side, Carver& memory);

  /// Where the gradient of this parameter goes; null for kNone.
  float* operator()(int place) const;
  void hand_over(Tensors gradients) const;

 private:
  struct Kept {
    int place;
    float* at;
  };
  Tensors gradients_;  // empty: `kept_` are
  std::vector<Kept> kept_;
};

}  // namespace tutti
