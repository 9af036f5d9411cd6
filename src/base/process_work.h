// Whether another process gets on with its work, as the system sees it: so nobody has to wait
// without end for one that hangs, nor to give up one that is busy.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tutti {

/// A number that changes while a process or one that it started computes or has pages read in. The
/// bytes that it asks for show in its processor time.
uint64_t work_of(pid_t pid);

}  // namespace tutti
