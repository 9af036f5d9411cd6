// What a program takes of a rank's memory, by the plan's own account.
#pragma once

#include "plan/ir/program.h"

namespace tutti {

/// Bytes per kind.
struct MemoryForecast {
  int64_t bytes[kBufferKinds] = {};
  int64_t total() const;
};
MemoryForecast forecast_memory(const Program& program);
/// Of the window that the rank's program wants.
int64_t window_bytes(const Program& program);

}  // namespace tutti
