// Losses as segments that can follow any model. Each sums over valid targets in float64 and counts
// them: the output "loss" of model/core/segment.h. A target of -1, or NaN where targets are floats,
// means that there is none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/adapt/adaptor.h"
#include "model/core/segment.h"
#include "model/loss/value_loss.h"

namespace tutti {

/// Targets with this value do not count.
inline constexpr int64_t kIgnoredTarget = -1;

/// Throws Error naming the first target that is neither a class nor kIgnoredTarget. The targets
/// must be in the host's memory.
void check_classes(const at::Tensor& targets, int64_t classes);
/// The Model::check of a model that ends with loss_segment: checks that its targets are classes.
/// Empty if they are values.
std::function<void(Tensors data)> class_check(const Job& job, const Border& output,
                                              const std::vector<Border>& data);

/// Cross-entropy of `logits` [..., classes] against `targets` [...] (int64). It uses none of its
/// block's parameters, so it can follow other segments of a block.
std::unique_ptr<Segment> cross_entropy_segment(Border logits, Border targets);

/// The same as a block of its own, without parameters.
Block cross_entropy_block(std::string name, Border logits, Border targets);

/// The losses that there are.
std::vector<std::string> loss_names();

/// The loss that [loss] names, of `output`; it reads its targets (and mixup's) from the
/// model's `data`.
///   cross-entropy         torch's, with label_smoothing and class_weights; the count is the sum of
///                         the targets' weights
///   mse, mae, huber, bce  elementwise over [B, outputs], bce of logits; the count is the number of
///                         valid elements
///   distill               the part that needs no teacher, which is cross-entropy; infer/prepare.h
///                         puts distill_segment in its place
/// With mixup cross-entropy is (1 - mix) * loss(targets) + mix * loss(other_targets), sample by
/// sample, and the count likewise. Throws Error for shapes that do not fit.
std::unique_ptr<Segment> loss_segment(const Job& job, Border output,
                                      const std::vector<Border>& data);

/// An autoencoder's reconstruction as a function of (output [B, n], data[0], targets): the loss of
/// every element by loss.kind, without rows whose target is -1. Returns sum and count, for a loss
/// that adds to them.
TensorFunction reconstruction_loss(const LossConfig& config);

/// One element of a loss of values. Throws Error for a loss of classes.
ElementLoss element_loss(const LossConfig& config);

/// The teacher's logits for a micro-batch's data tensors, in the order of `data`.
using Teacher = std::function<at::Tensor(Tensors data)>;
/// mix * temperature^2 * KL(teacher || student) at that temperature + (1 - mix) * cross-entropy as
/// above, the first term times the weight of the row's target. Its inputs are `output` and all of
/// `data`. The teacher is asked in every forward and must not keep a graph.
std::unique_ptr<Segment> distill_segment(const Job& job, Border output,
                                         const std::vector<Border>& data, Teacher teacher);

}  // namespace tutti
