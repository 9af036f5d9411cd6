// What the input part of a hand-written backward leaves for its weight part in Context::deferred.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "model/core/carver.h"
#include "model/core/segment.h"

namespace tutti {

/// Copies a tensor to memory on the same device: for a gradient that the weight part needs and that
/// will be overwritten before it runs.
void defer(const at::Tensor& tensor, void* to);

/// Gradients of norms and biases, which kernels of the input part make along the way. A backward in
/// one part has them written where they belong. Split in two, it keeps them in deferred memory
/// until the weight part hands them over.
class SideGradients {
 public:
  /// One parameter's gradient: its place in the block's list and its floats. kNoPlace takes no memory.
  struct Side {
    int place;
    int64_t size;
  };
  /// For a backward in one part: gradients are written straight into `gradients`.
  explicit SideGradients(Tensors gradients) : gradients_(gradients) {}
  /// For a backward in two parts: takes deferred memory from `memory`, in the order of `sides`.
  /// Both parts must list them alike.
  SideGradients(std::initializer_list<Side> sides, Carver& memory);
  void add(Side side, Carver& memory);

  /// Where a kernel is to write the gradient of this parameter; null for kNoPlace.
  float* operator()(int place) const;
  /// In the weight part: copies what the input part left into the parameters' gradients.
  void hand_over(Tensors gradients) const;

 private:
  struct Kept {
    int place;
    float* at;
  };
  Tensors gradients_;  // empty if `kept_` are used
  std::vector<Kept> kept_;
};

}  // namespace tutti
