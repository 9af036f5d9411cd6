// Small things that engine and trainer share: the tags of their channels, apart from those of
// instructions (which are the instructions' ids), and the time-out.
#pragma once

#include "base/wait.h"
#include "config/job.h"

namespace tutti {

// Each channel and roll call takes 16 operation ids or fewer; 64 apart leaves room.
inline constexpr uint32_t kDataChannel = 1 << 20, kMainChannel = kDataChannel + 64,
                          kLoaderChannel = kMainChannel + 64, kRollCall = kLoaderChannel + 64,
                          kForwardRollCall = kRollCall + 64,
                          kOutputMessages = kForwardRollCall + 64, kHandover = kOutputMessages + 64;

inline Duration timeout_of(const Job& job) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
}

}  // namespace tutti
