// Cross-entropy against classes, plain or with all that softens it: label smoothing, class weights,
// mixup, a teacher.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/loss/loss.h"

namespace tutti {

struct ClassLossSpec {
  Border logits;   ///< [..., classes] float; on a GPU also bfloat16 or float16
  Border targets;  ///< [...] int64; kIgnoredTarget: none
  double smoothing = 0;
  std::vector<double> weights;  ///< of the classes; empty: all 1
  /// reads "other_targets" as targets and "mix" [the first dim of targets]
  bool mixup = false;
  /// A teacher of weight `mix` at `temperature`, asked in every forward with the tensors of `data`.
  Teacher teacher;
  double temperature = 1, mix = 0;
  std::vector<Border> data;
};

/// Inputs: the logits and targets, with mixup "other_targets" and "mix"; with a teacher the logits
/// and all of `data`. Throws Error for shapes that do not fit.
std::unique_ptr<Segment> class_loss(ClassLossSpec spec);

}  // namespace tutti
