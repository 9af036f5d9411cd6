// How long a GPU stood idle between kernels, and what each of them took, from CUPTI's records of
// what ran on it. In a process of its own: being watched slows a step down a little.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

struct Idle {
  /// seconds in which something ran; from the first beginning to the last end
  double busy = 0, span = 0;
  int64_t records = 0;  ///< kernels, fills and copies within the device
  /// records that CUPTI lost or had no times for: then busy is too small
  int64_t dropped = 0;
  struct Gap {
    double seconds;
    std::string before, after;  ///< the kernels around it
  };
  std::vector<Gap> longest;  ///< at most eight, the longest first
  struct Part {
    std::string name;  ///< of a kernel; of a fill or copy with its bytes
    double seconds;
    int64_t count;
  };
  std::vector<Part> parts;  ///< all that ran, summed by name, the largest first

  double share() const { return span > 0 ? 1 - busy / span : 1; }
};

/// Copies to and from the host run alongside the compute and do not count as work: what waits for
/// them is idle.
class GapRecorder {
 public:
  /// Before the first CUDA call of the process, so that captured steps are recorded too. Throws
  /// Error where CUPTI is missing or refuses.
  GapRecorder();
  ~GapRecorder();
  GapRecorder(const GapRecorder&) = delete;
  GapRecorder& operator=(const GapRecorder&) = delete;

  /// Both with the device idle.
  void begin();
  Idle end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
