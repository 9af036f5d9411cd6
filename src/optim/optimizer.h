// Optimizers on flat memory: fused passes, element by element, so that any cut of a unit gives the
// same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/exact_sum.h"
#include "config/job.h"
#include "optim/update_kernels.h"

namespace tutti {

/// The values of one step, equal for all elements of a parameter.
struct StepScalars {
  int64_t step = 0;  ///< from 0
  double lr = 0;     ///< with the group's factor
  /// clip factor / count of targets: every gradient is multiplied by it (rounded to float)
  double gradient_scale = 1;
  double clip_value = 0;    ///< > 0: then cut to [-clip_value, clip_value]
  double weight_decay = 0;  ///< the group's
  double trust = 1;         ///< lamb's second pass: trust_ratio() of the parameter
};

/// Of one parameter, added up over its 4096-element chunks: LAMB's first pass.
struct Norms {
  ExactSum parameter, direction;  ///< squares
  void merge(const Norms& other);
};
/// |parameter| / |direction|, 1 where one of them is 0.
double trust_ratio(const Norms& norms);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// names of the values kept per parameter: {"m", "v"}
  virtual std::vector<std::string> slots() const = 0;
  /// What update() computes with, for one that runs elsewhere (device/state_kernels.h).
  virtual UpdateScalars scalars(const StepScalars& scalars) const = 0;
  /// Updates n parameters in place. slots[k] points to the k-th slot's values of the same elements.
  /// Pure but for its outputs. Every element gets the same operations whatever n and the alignment.
  virtual void update(float* parameters, const float* gradients, std::span<float* const> slots,
                      int64_t n, const StepScalars& scalars) const = 0;
  /// Whether update() needs StepScalars::trust, from measure() of the whole parameter.
  virtual bool two_passes() const { return false; }
  /// The first pass: updates the slots and adds the squares of the elements and of their directions
  /// to `norms`. `n` begins on a chunk's start (grid.h's kChunk).
  virtual void measure(const float* parameters, const float* gradients,
                       std::span<float* const> slots, int64_t n, const StepScalars& scalars,
                       Norms& norms) const;
};

/// The semantics of torch.optim for sgd (slot "m"; none without momentum), adagrad ("sum"), rmsprop
/// ("v", and "m" with momentum), adam, adamw ("m", "v"); Lion ("m") and LAMB ("m", "v") as in their
/// papers, both with decoupled decay. `isa` is numerics.isa, or kAuto for the best one this
/// processor has; both give the same bits. Throws Error for an instruction set that the processor
/// lacks.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, Isa isa = Isa::kAuto);

/// min(1, clip / (norm + 1e-6)), 1 when clip is 0: torch's rule.
double clip_factor(double norm, double clip);

}  // namespace tutti
