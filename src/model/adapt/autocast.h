// ATen's autocast as a scope: matmuls and convolutions of float32 tensors on a GPU run in a
// narrower type.
#pragma once

#include <c10/core/ScalarType.h>

namespace tutti {

/// While it lives, CUDA operations on this thread that autocast knows take their inputs in `type`;
/// kFloat changes nothing. Casts are not kept, because a parameter may have other values, or be
/// recomputed, in the next pass.
class AutocastScope {
 public:
  explicit AutocastScope(at::ScalarType type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool active_, was_enabled_ = false, kept_casts_ = false;
  at::ScalarType was_type_ = at::kHalf;
};

}  // namespace tutti
