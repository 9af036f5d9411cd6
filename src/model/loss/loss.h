// Losses as segments behind any model. Every one sums over valid targets in float64 and counts
// them: the output "loss" of model/core/segment.h. A target of -1 (or NaN, where targets are
// floats) is none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/adapt/adaptor.h"
#include "model/core/segment.h"

namespace tutti {

/// Targets with this value do not count.
inline constexpr int64_t kIgnoredTarget = -1;

/// Throws Error naming the first target, in the host's memory, that is neither a class nor
/// kIgnoredTarget.
void check_classes(const at::Tensor& targets, int64_t classes);
/// The Model::check of a model that ends with loss_segment: its targets are classes. Empty where
/// they are values.
std::function<void(Tensors data)> class_check(const Job& job, const Border& output,
                                              const std::vector<Border>& data);

/// Cross-entropy of `logits` [..., classes] against `targets` [...] (int64). Uses none of its
/// block's parameters, so it can stand behind other segments of a block.
std::unique_ptr<Segment> cross_entropy_segment(Border logits, Border targets);

/// The same as a block of its own, without parameters.
Block cross_entropy_block(std::string name, Border logits, Border targets);

/// The loss that [loss] names, of `output`, reading its targets (and mixup's) from the model's
/// `data`:
///   cross-entropy  torch's, with label_smoothing and class_weights; the count is the sum of the
///                  targets' weights
///   mse, mae, huber, bce (with logits)   elementwise over [B, outputs]; the count is the number of
///                                        valid elements
/// With mixup cross-entropy is (1 - mix) * loss(targets) + mix * loss(other_targets), sample by
/// sample, and the count alike. `distill`: the part that needs no teacher; train/prepare.h puts
/// distill_segment in its place. Throws Error for shapes that do not fit.
std::unique_ptr<Segment> loss_segment(const Job& job, Border output,
                                      const std::vector<Border>& data);

/// An autoencoder's reconstruction as a function of (output [B, n], data[0], targets): loss.kind of
/// every element, rows whose target is -1 left out. Returns sum and count, for a loss that adds to
/// it.
TensorFunction reconstruction_loss(const LossConfig& config);

/// The teacher's logits for a micro-batch's data tensors, in the order of `data`.
using Teacher = std::function<at::Tensor(Tensors data)>;
/// mix * temperature^2 * KL(teacher || student) at the temperature + (1 - mix) * cross-entropy as
/// above, the first times the weight of the row's target. Its inputs are `output` and all of
/// `data`. The teacher is asked in every forward and must not keep a graph.
std::unique_ptr<Segment> distill_segment(const Job& job, Border output,
                                         const std::vector<Border>& data, Teacher teacher);

}  // namespace tutti
