// What the commit of a step does to each parameter: the optimizer's update by its group's settings,
// nothing where it is frozen, or a buffer's rule.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "config/parameter_groups.h"
#include "device/state_kernels.h"
#include "engine/units.h"
#include "optim/optimizer.h"
#include "plan/ir/shape.h"

namespace tutti {

/// A stretch of a parameter and where its reduced gradient lies; begins on a chunk's start.
struct GradientPiece {
  int64_t at = 0, size = 0;  ///< floats from the unit's start
  const float* gradient = nullptr;
};

class Updater {
 public:
  /// Throws Error for a group that fits no parameter.
  Updater(const Job& job, const ModelShape& shape);
  std::vector<std::string> slots() const { return optimizer_->slots(); }
  UpdateKind kind() const;
  /// What a device updates the parameters of a step with; rule_of() is a parameter's place in it.
  std::vector<RuleScalars> rules(const StepScalars& scalars, int64_t proposals) const;
  int rule_of(int unit, size_t parameter) const { return numbers_[unit][parameter]; }
  size_t rule_count() const { return distinct_.size(); }
  /// Whether the parameter's gradient counts in norms: it is trained and not frozen.
  bool counts(int unit, size_t parameter) const;
  /// `proposals`: micro-batches of a step, for buffers. The pieces cover the parameter, or what
  /// this rank holds of it: then an optimizer of two passes needs the `norms` over all of it,
  /// measure()'s of all ranks that hold some.
  void update(const UnitValues& units, int unit, size_t parameter,
              std::span<const GradientPiece> pieces, StepScalars scalars, int64_t proposals,
              const Norms* norms = nullptr) const;
  /// Whether update() looks at a whole parameter before it changes any of it (LAMB).
  bool two_passes() const { return optimizer_->two_passes(); }
  /// The first of two passes, once a step: it changes the slots. Of a parameter that is not trained
  /// nothing.
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
  std::vector<Rule> distinct_;             // of them
  std::vector<std::vector<int>> numbers_;  // [unit][parameter]: into distinct_
};

}  // namespace tutti
