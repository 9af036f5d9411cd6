// The class loss of a micro-batch that lies on a GPU, by operations that neither wait for it nor
// depend on the order in which its threads run. The formulas are class_loss.cc's; sums are of
// float64.
#pragma once

#include "model/core/device_tensor.h"
#include "model/loss/class_loss.h"

namespace tutti {

/// A micro-batch as the loss reads it; `others` and `mix` are undefined without mixup.
struct ClassRows {
  at::Tensor logits, targets, others, mix;
};

class DeviceClassLoss {
 public:
  /// `spec.weights` is whole: one per class.
  DeviceClassLoss(const ClassLossSpec& spec, int64_t rows, int64_t classes);

  /// Writes (sum, count) into `loss`; leaves in context.saved what backward reads. `taught`: the
  /// teacher's logits, or undefined. A target that is no class makes the sum NaN.
  void forward(const Context& context, const ClassRows& in, const at::Tensor& taught,
               const at::Tensor& loss) const;
  /// The gradient of the sum, times *context.loss_scale.
  void backward(const Context& context, const ClassRows& in, const at::Tensor& grad) const;

 private:
  // A column of targets: what each row counts of it. Zeros where there is none.
  struct Part {
    at::Tensor targets, place;  // int64 [rows]; place: within the classes
    at::Tensor none;            // bool [rows]
    at::Tensor share, weight;   // float64 [rows]: of the row; of the class
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
