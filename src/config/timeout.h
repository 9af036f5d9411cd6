// How long a job waits for a rank that gives no sign, as waits need it.
#pragma once

#include "base/wait.h"
#include "config/job.h"

namespace tutti {

/// layout.timeout as a duration.
inline Duration timeout_of(const Job& job) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
}

}  // namespace tutti
