// Sums over the buffers of a program. Each is a region of its own, so adding them up is exact.
#include "plan/ir/plan_memory.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace tutti {

int64_t MemoryForecast::total() const {
  return std::accumulate(std::begin(bytes), std::end(bytes), int64_t{0});
}

MemoryForecast forecast_memory(const Program& program) {
  // What is offloaded is in its tier, and what is lent is memory of the loader, which counts for
  // itself.
  MemoryForecast forecast;
  for (const Buffer& buffer : program.buffers)
    if (!buffer.offloaded && !buffer.lent)
      forecast.bytes[static_cast<int>(buffer.kind)] += buffer.bytes;
  return forecast;
}

int64_t window_bytes(const Program& program) {
  // The window ends with its last buffer. Sizes are not added up, because each buffer begins on a
  // page and there are gaps between them.
  int64_t bytes = 0;
  for (const Buffer& b : program.buffers)
    if (b.window) bytes = std::max(bytes, b.window_offset + b.bytes);
  return bytes;
}

}  // namespace tutti
