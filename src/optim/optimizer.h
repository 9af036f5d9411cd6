// Optimizers on flat memory: one fused pass, element by element, so that any cut of a unit gives the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/job.h"

namespace tutti {

/// The values of one step, equal for all elements.
struct StepScalars {
  int64_t step = 0;  ///< from 0
  double lr = 0;
  double gradient_scale = 1;  ///< clip factor / count of targets: every gradient is multiplied by it (rounded to float)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<std::string> slots() const = 0;  ///< names of the values kept per parameter: {"m", "v"}
  /// Updates n parameters in place. slots[k] points to the k-th slot's values of the same elements. Pure but for its
  /// outputs. Every element gets the same operations whatever n and the alignment.
  virtual void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
                      const StepScalars& scalars) const = 0;
};

/// The semantics of torch.optim: AdamW with decoupled decay and bias correction (slots "m", "v"), SGD whose momentum
/// starts as the first step's gradient (slot "m"; none without momentum). `isa` is numerics.isa: avx2, avx512, or auto
/// for the best one this processor has; both give the same bits. Throws Error for an instruction set that the processor
/// lacks.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::string_view isa = "auto");

/// The learning rate of a step: warm-up is linear from lr/warmup to lr; cosine then falls from lr to final_lr * lr,
/// which it reaches at step train.steps and keeps from there on.
double learning_rate(const TrainConfig& config, int64_t step);

/// min(1, clip / (norm + 1e-6)), 1 when clip is 0: torch's rule.
double clip_factor(double norm, double clip);

}  // namespace tutti
