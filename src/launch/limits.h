// How many ranks a host can start: what is too many is refused before any is started, with the
// limit that stands in the way.
#pragma once

#include <cstdint>
#include <string>

#include "config/job.h"

namespace tutti {

/// What the system allows this process; what it does not limit is as large as can be.
struct HostLimits {
  int64_t files = INT64_MAX;    ///< open files of a process (ulimit -Hn)
  int64_t threads = INT64_MAX;  ///< further threads: of the user, the control group, the system
};
HostLimits host_limits();

/// Why a host cannot start the ranks of a resolved layout; "" where it can. They differ in the
/// files that they need by what they are, how they are connected, and over how many hosts they
/// pretend to be spread.
std::string too_many_ranks(const LayoutConfig& layout, const HostLimits& limits);

/// Raises this process's limit of open files as far as it may: a launcher has some for every rank.
void raise_file_limit();

}  // namespace tutti
