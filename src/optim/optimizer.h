// Optimizers on flat memory: one fused pass, element by element, so that any cut of a unit gives the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/job.h"

namespace tutti {

/// The values of one step, equal for all elements.
struct StepScalars {
  int64_t step = 0;        ///< from 0
  double lr = 0;
  double gradient_scale = 1;  ///< clip factor / count of targets: every gradient is multiplied by it (rounded to float once)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<std::string> slots() const = 0;  ///< names of the values kept per parameter: {"m", "v"}
  /// Updates n parameters in place. slots[k] points to the k-th slot's values of the same elements. Pure but for its outputs.
  /// Every element gets the same operations whatever n and the alignment.
  virtual void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
                      const StepScalars& scalars) const = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config);

/// The learning rate of a step: warm-up is linear from lr/warmup; cosine spans train.steps and keeps its last value past it.
double learning_rate(const TrainConfig& config, int64_t step);

/// min(1, clip / (norm + 1e-6)), 1 when clip is 0: torch's rule.
double clip_factor(double norm, double clip);

}  // namespace tutti
