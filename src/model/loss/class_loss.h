// Cross-entropy against classes, plain or with all that softens it: label smoothing, class weights,
// mixup, a teacher (distillation).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/loss/loss.h"

namespace tutti {

/// What the loss compares, and how.
struct ClassLossSpec {
  Border logits;   ///< [..., classes] float; on a GPU also bfloat16 or float16
  Border targets;  ///< [...] int64; kIgnoredTarget means none
  double smoothing = 0;
  std::vector<double> weights;  ///< one per class; empty: all 1
  /// whether it reads "other_targets" like targets and "mix" [the first dim of targets]
  bool mixup = false;
  /// A teacher with weight `mix` at `temperature`, asked in every forward with the tensors of
  /// `data`. Empty if there is none.
  Teacher teacher;
  double temperature = 1, mix = 0;
  std::vector<Border> data;
};

/// Makes the segment. Its inputs are the logits and targets, with mixup also "other_targets" and
/// "mix"; with a teacher the logits and all of `data`. Throws Error for shapes that do not fit.
std::unique_ptr<Segment> class_loss(ClassLossSpec spec);

}  // namespace tutti
