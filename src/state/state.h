// The state of a run: every value that outlives a step, by name. The hash and the checkpoint are made from the same
// list, so what is hashed is what is saved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti {

/// One parameter's values in one slot ("parameter", "m", "v"), contiguous, without padding.
struct StateEntry {
  std::string name, slot;
  std::vector<int64_t> dims;
  std::span<float> values;
};

/// Values that are not tensors.
struct StateCounters {
  int64_t step = 0;      ///< steps committed
  int64_t cursor = 0;    ///< samples consumed
  std::string schedule;  ///< state of a schedule that has one; empty for those that are functions of the step
};

struct State {
  std::vector<StateEntry> entries;  ///< in model order, slots of a parameter together
  StateCounters counters;
};

/// SHA-256 (64 hex digits) over the ordered list of (name, slot, dtype, shape, SHA-256 of each 1 MiB range) and the
/// counters.
std::string state_hash(const State& state);

}  // namespace tutti
