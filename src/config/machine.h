// What a process may use of its machine, from what the system says. Pure but for reading files
// under the given root.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Texts of /proc/self that say where the process's control groups are.
struct ControlGroups {
  std::string mounts;  ///< /proc/self/mountinfo
  std::string groups;  ///< /proc/self/cgroup
};
ControlGroups this_control_groups();

/// Cores that the process may be scheduled on.
int cores_by_affinity();

/// Cores that the quotas of control groups allow: the smallest quota / period from the process's
/// own group up to the mount's root, rounded down, at least 1; at most `cores`. Read are cpu.max of
/// every cgroup v2 mount, and cpu.cfs_quota_us and cpu.cfs_period_us of every v1 mount of the cpu
/// controller. `root` is put before the mount points (a test's folder; empty on a machine). A group
/// outside of what is mounted counts by the mount's root alone.
int cores_by_cgroup(int cores, const std::string& root, const ControlGroups& groups);

/// Bytes that control groups allow, found in the same way: memory.max of v2, memory.limit_in_bytes
/// of v1. At most `bytes`, which is the machine's own memory.
int64_t memory_by_cgroup(int64_t bytes, const std::string& root, const ControlGroups& groups);

/// Further processes and threads that control groups allow, found in the same way: pids.max less
/// pids.current. INT64_MAX where there is no limit.
int64_t tasks_by_cgroup(const std::string& root, const ControlGroups& groups);

}  // namespace tutti
