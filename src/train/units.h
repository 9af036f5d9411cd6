// The values of a model on one rank: every unit's parameters and optimizer slots in flat, private, accounted memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/memory.h"
#include "model/segment.h"
#include "state/state.h"

namespace tutti {

class Units {
 public:
  /// Allocates all units and initialises the parameters by (seed, name); slots start at zero.
  Units(const Model& model, const ModelShape& shape, const std::vector<std::string>& slots, uint64_t seed,
        Accounts& accounts);

  float* parameters(int unit) const { return parameters_[unit].data(); }
  /// Pointers to the unit's slots, at `offset` floats from its start.
  std::vector<float*> slots(int unit, int64_t offset) const;
  /// Every parameter and slot, in model order; spans into this object.
  State state(const StateCounters& counters) const;

 private:
  const ModelShape& shape_;
  std::vector<std::string> slot_names_;
  Arena parameter_arena_, moment_arena_;
  std::vector<std::span<float>> parameters_;
  std::vector<std::vector<std::span<float>>> slots_;  // [unit][slot]
};

}  // namespace tutti
