// The class loss of a micro-batch on a GPU, by operations that neither wait for it nor depend on
// the order in which its threads run. The formulas are class_loss.cc's; sums are in float64.
#pragma once

#include "model/core/device_tensor.h"
#include "model/loss/class_loss.h"

namespace tutti {

/// A micro-batch as the loss reads it; `others` and `mix` are undefined without mixup.
struct ClassRows {
  at::Tensor logits, targets, others, mix;
};

/// The arithmetic of one loss segment. It has no memory of its own but two small constants.
class DeviceClassLoss {
 public:
  /// `spec.weights` must have one weight per class.
  DeviceClassLoss(const ClassLossSpec& spec, int64_t rows, int64_t classes);

  /// Writes (sum, count) into `loss` and leaves in context.saved what backward reads. `taught` are
  /// the teacher's logits, or undefined. A target that is no class makes the sum NaN.
  void forward(const Context& context, const ClassRows& in, const at::Tensor& taught,
               const at::Tensor& loss) const;
  /// Writes the gradient of the sum, times *context.loss_scale if there is one, into `grad`.
  void backward(const Context& context, const ClassRows& in, const at::Tensor& grad) const;

 private:
  // One set of targets and what each row counts of it; shares are zero where there is no target.
  struct Part {
    at::Tensor targets, place;  // int64 [rows]; place is clamped to the classes
    at::Tensor none;            // bool [rows]
    at::Tensor share, weight;   // float64 [rows]: this set's share; its class's weight
  };
  std::vector<Part> parts(const ClassRows& in) const;
  Part part(const at::Tensor& targets, const at::Tensor& share) const;
  at::Tensor row_weight(const std::vector<Part>& parts) const;
  at::Tensor spread(const std::vector<Part>& parts) const;
  at::Tensor hard_loss(const std::vector<Part>& parts, const at::Tensor& log_p) const;
  at::Tensor soft_loss(const Context& context, at::Device device) const;
  at::Tensor matrix(std::span<std::byte> memory, int64_t index, at::Device device) const;

  ClassLossSpec spec_;
  int64_t rows_, classes_;
  bool plain_, weighted_;
  DeviceConstant weights_, columns_;  // float64 [classes]; int64 0, 1, ...
};

}  // namespace tutti
