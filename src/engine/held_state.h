// The values that a rank holds of the model, and the memory that they are in: that of an epoch's
// plan, which outlives the epoch until another one has taken them over.
#pragma once

#include <memory>

#include "engine/program_memory.h"
#include "state/units.h"

namespace tutti {

struct HeldState {
  std::unique_ptr<ProgramMemory> memory;
  std::unique_ptr<Units> units;
};

}  // namespace tutti
