// Whether what the plan says of its transfers fits the instructions that carry them out: who takes
// part, and that all that is read and written there is among their operands. Part of
// plan/check/prove.h; what transfers mean is judged by plan/check/values.h.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"

namespace tutti {

/// The plan's form must be sound.
std::vector<std::string> check_transfers(const Plan& plan, const ModelShape& model,
                                         const Ordering& ordering);

/// The buffer of a rank in whose part of the window a byte is; -1: there is none.
int window_buffer(const Program& program, int64_t offset);

}  // namespace tutti
