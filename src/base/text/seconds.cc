// The thresholds are of the value and not of its text: 0.99996 s is "1000 ms".
#include "base/text/seconds.h"

#include <fmt/format.h>

namespace tutti {

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} s", seconds);
}

}  // namespace tutti
