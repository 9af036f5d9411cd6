// How many cores a process may use, from what the system says. Pure but for reading files under the given root.
#pragma once

#include <string>

namespace tutti {

/// Cores that the cgroup v2 quotas allow: the smallest quota / period of cpu.max from the process's own group up to the
/// root, rounded down, at least 1; at most `cores`. `membership` is the text of /proc/self/cgroup.
int cores_by_cgroup(int cores, const std::string& root, const std::string& membership);

}  // namespace tutti
