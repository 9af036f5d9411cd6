// What a program takes of a rank's memory, by the plan's own account.
#pragma once

#include "plan/ir/program.h"

namespace tutti {

/// Bytes per kind of buffer.
struct MemoryForecast {
  int64_t bytes[kBufferKinds] = {};
  int64_t total() const;
};
/// What the program's buffers take in the rank's own memory: neither the second tier nor what
/// the loader lends.
MemoryForecast forecast_memory(const Program& program);
/// Bytes of the window that the rank's program wants.
int64_t window_bytes(const Program& program);

}  // namespace tutti
