// The two plans that ranks run by: that of a step and that of an evaluation.
#pragma once

#include <cstdint>

#include "plan/ir/program.h"

namespace tutti {

enum class Which : uint8_t { kSteps, kEvaluation };

struct Plans {
  const Plan& of(Which which) const { return which == Which::kSteps ? steps : evaluation; }

  Plan steps, evaluation;
};

}  // namespace tutti
