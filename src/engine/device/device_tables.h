// What the kernels of a device look up in a step: the parameter chunks of every unit, and where
// their squares are stored among the votes. They are pure functions of the model's shape and the
// rules; the engine copies them to the device once.
#pragma once

#include <vector>

#include "device/state_kernels.h"
#include "engine/updater.h"
#include "grid/grid.h"
#include "plan/ir/shape.h"

namespace tutti {

struct UnitTable {
  std::vector<StateChunk> chunks;         ///< of all its parameters
  std::vector<int64_t> parameter_chunks;  ///< [parameters + 1]: where the chunks of each begin
  /// those that count in norms, with their places among the votes
  std::vector<StateChunk> counted;
};

struct StateTables {
  std::vector<UnitTable> units;
  std::vector<int64_t> unit_chunks;  ///< [units + 1]: where the places of each unit begin
  int64_t places() const { return unit_chunks.back(); }
};
StateTables state_tables(const ModelShape& shape, const Updater& updater);

}  // namespace tutti
