// The counters of a rank that others wait for, each with its Signal on a cache line of its own; all
// are zero at first. They are stored in memory that all ranks of the host can write, because a
// waiter registers itself in the Signal.
#pragma once

#include <atomic>

#include "base/wait.h"
#include "plan/ir/window_flags.h"

namespace tutti {

struct alignas(64) Flag {
  std::atomic<uint64_t> value{0};
  Signal signal;
};

using Flags = Flag[kWindowFlags];

inline void raise_flag(Clock& clock, Flag& flag, uint64_t value) {
  flag.value.store(value, std::memory_order_release);
  clock.notify(flag.signal);
}

}  // namespace tutti
