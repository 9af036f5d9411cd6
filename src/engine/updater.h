// What the commit of a step does to each parameter: the optimizer's update with the settings of its
// group, nothing if it is frozen, or the rule of a buffer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/processor.h"
#include "config/check/parameter_groups.h"
#include "device/state_kernels.h"
#include "optim/optimizer.h"
#include "plan/ir/shape.h"
#include "state/units.h"

namespace tutti {

/// A stretch of a parameter, which begins where a parameter chunk does, and where its reduced
/// gradient is.
struct GradientPiece {
  int64_t at = 0, size = 0;  ///< floats from the unit's start
  const float* gradient = nullptr;
};

class Updater {
 public:
  /// Throws Error for a group that fits no parameter.
  Updater(const Job& job, const ModelShape& shape, CodePath path = fastest_path());
  std::vector<std::string> slots() const { return optimizer_->slots(); }
  /// The optimizer, as a device knows it.
  UpdateKind kind() const;
  /// What a device updates the parameters of a step with; rule_of() is the place of a
  /// parameter in this list.
  std::vector<RuleScalars> rules(const StepScalars& scalars, int64_t proposals) const;
  int rule_of(int unit, size_t parameter) const { return numbers_[unit][parameter]; }
  size_t rule_count() const { return distinct_.size(); }
  /// Whether the parameter's gradient counts in norms: it is trained and not frozen.
  bool counts(int unit, size_t parameter) const;
  /// `proposals`: how many micro-batches of a step made one, for buffers. The pieces cover the
  /// parameter, or what this rank holds of it; in the second case an optimizer of two passes needs
  /// the `norms` over all of it, which is what measure() returned, over all ranks that hold some.
  void update(const UnitValues& units, int unit, size_t parameter,
              std::span<const GradientPiece> pieces, StepScalars scalars, int64_t proposals,
              const Norms* norms = nullptr) const;
  /// Whether update() looks at a whole parameter before it changes any of it (LAMB).
  bool two_passes() const { return optimizer_->two_passes(); }
  /// The first of two passes, once per step: it changes the slots. For a parameter that is not
  /// trained it does nothing.
  Norms measure(const UnitValues& units, int unit, size_t parameter,
                std::span<const GradientPiece> pieces, StepScalars scalars) const;

 private:
  struct Rule {
    Role role = Role::kTrained;
    double lr = 1, weight_decay = 0;
    bool frozen = false;
    bool operator==(const Rule&) const = default;
  };
  std::string name_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::vector<Rule>> rules_;   // [unit][parameter]
  std::vector<Rule> distinct_;             // those among them that differ
  std::vector<std::vector<int>> numbers_;  // [unit][parameter]: its place in distinct_
};

}  // namespace tutti
