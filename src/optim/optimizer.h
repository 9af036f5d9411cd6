// Optimizers on flat memory: fused passes, element by element, so that any cut of a unit (for
// ZeRO's slices) gives the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/exact_sum.h"
#include "base/processor.h"
#include "config/job.h"
#include "optim/update_kernels.h"

namespace tutti {

/// The values of one step, equal for all elements of a parameter.
struct StepScalars {
  int64_t step = 0;  ///< from 0
  double lr = 0;     ///< the schedule's, times the group's factor
  /// clip factor / count of targets, rounded to float; every gradient is multiplied by it
  double gradient_scale = 1;
  double clip_value = 0;    ///< > 0: gradients are then cut to [-clip_value, clip_value]
  double weight_decay = 0;  ///< the group's
  double trust = 1;         ///< lamb's second pass: trust_ratio() of the parameter
};

/// The norms of one parameter, added up over its chunks of 4096 elements: the result of LAMB's
/// first pass. The sums are exact, so it does not matter which rank measured which chunk.
struct Norms {
  ExactSum parameter, direction;  ///< squares
  void merge(const Norms& other);
};
/// |parameter| / |direction|, or 1 where one of them is 0: LAMB's trust ratio.
double trust_ratio(const Norms& norms);

/// An optimizer without state of its own: what it keeps per parameter is in the slots. Thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The names of the values that are kept per parameter, such as {"m", "v"}.
  virtual std::vector<std::string> slots() const = 0;
  /// What update() computes with, for an update that runs elsewhere (device/state_kernels.h).
  virtual UpdateScalars scalars(const StepScalars&) const { return {}; }
  /// Updates n parameters in place. slots[k] points to the k-th slot's values of the same elements.
  /// It has no effect besides its outputs. Every element gets the same operations whatever n and
  /// the alignment are.
  virtual void update(float* parameters, const float* gradients, std::span<float* const> slots,
                      int64_t n, const StepScalars& scalars) const = 0;
  /// Whether update() needs StepScalars::trust, from measure() of the whole parameter.
  virtual bool two_passes() const { return false; }
  /// The first pass: updates the slots, and adds the squares of the elements and of their
  /// directions to `norms`. The elements begin at the start of a chunk (kChunk of grid/grid.h).
  virtual void measure(const float* parameters, const float* gradients,
                       std::span<float* const> slots, int64_t n, const StepScalars& scalars,
                       Norms& norms) const;
};

/// Makes train.optimizer; docs/optimizers.md has the slots and the step of each. All code paths give
/// the same bits; the processor must be able to run this one.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config,
                                          CodePath path = fastest_path());

/// The optimizers that there are.
std::vector<std::string> optimizer_names();

/// min(1, clip / (norm + 1e-6)), or 1 when clip is 0: torch's rule.
double clip_factor(double norm, double clip);

}  // namespace tutti
