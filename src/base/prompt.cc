// The scheduler (EEVDF) runs threads with short turns before those with long ones. A thread's turn
// is its sched_runtime, which it may set without any privilege.
#include "base/prompt.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tutti {

namespace {

/// struct sched_attr as the kernel lays it out. Its header and the C library's cannot both be
/// included: both define sched_param.
struct SchedAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

}  // namespace

void wake_promptly() {
  constexpr uint64_t kTurnNs = 100'000;  // the least that the kernel takes
  SchedAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // somebody chose another policy
  attributes.runtime_ns = kTurnNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace tutti
