#include "plan/ir/memory.h"

#include <iterator>
#include <numeric>

namespace tutti {

int64_t MemoryForecast::total() const { return std::accumulate(std::begin(bytes), std::end(bytes), int64_t{0}); }

MemoryForecast forecast_memory(const Program& program) {
  MemoryForecast forecast;
  for (const Buffer& buffer : program.buffers)
    if (!buffer.offloaded && !buffer.lent) forecast.bytes[static_cast<int>(buffer.kind)] += buffer.bytes;
  return forecast;
}

}  // namespace tutti
