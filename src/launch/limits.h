// How many ranks a host can start: what is too many is refused before any is started, with the
// limit that stands in the way.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// What the system allows this process; what it does not limit is as large as can be.
struct HostLimits {
  int64_t files = INT64_MAX;    ///< open files of a process (ulimit -Hn)
  int64_t threads = INT64_MAX;  ///< further threads: of the user, the control group, the system
};
HostLimits host_limits();

/// Why so many ranks cannot be started; "" where they can.
std::string too_many_ranks(int64_t ranks, bool threads, const HostLimits& limits);

/// Raises this process's limit of open files as far as it may: a launcher has one for every rank.
void raise_file_limit();

}  // namespace tutti
