// What engine and trainer share of messages: who has which tags, and the time-out.
#pragma once

#include "base/wait.h"
#include "config/job.h"
#include "plan/ir/tags.h"

namespace tutti {

inline Duration timeout_of(const Job& job) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
}

}  // namespace tutti
