// Reads the control groups as the kernel shows them. A process may be in a group of v2 and in
// groups of several v1 controllers at once; the smallest limit on the way up to each mount counts.
#include "config/machine.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "base/processor.h"
#include "config/job.h"

namespace tutti {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

bool has(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// mountinfo writes blanks and backslashes in paths as \ooo.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  std::string root, point;  // the group that is mounted, and where
  bool unified = false;     // cgroup v2
};

/// A line is "36 35 98:0 /root /point options [optional fields] - type source options".
std::vector<Mount> mounts_of(const std::string& controller, const std::string& mounts) {
  std::vector<Mount> list;
  for (const std::string& line : split(mounts, '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    const size_t dash = std::find(words.begin(), words.end(), "-") - words.begin();
    if (dash < 6 || dash + 3 >= words.size()) continue;
    const std::string& type = words[dash + 1];
    const bool unified = type == "cgroup2";
    if (unified || (type == "cgroup" && has(split(words[dash + 3], ','), controller)))
      list.push_back({unescaped(words[3]), unescaped(words[4]), unified});
  }
  return list;
}

/// The process's group in the hierarchy of a mount: a line "0::/path" is v2's,
/// "4:cpu,cpuacct:/path" the controllers'.
std::string group_of(const std::string& controller, const std::string& groups, bool unified) {
  for (const std::string& line : split(groups, '\n')) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? line.compare(0, second + 1, "0::") == 0
                : has(split(controllers, ','), controller))
      return line.substr(second + 1);
  }
  return {};
}

/// The path of the group below the mount point. It is empty, which is the mount's own group, if the
/// group is not in there.
std::filesystem::path below(const std::string& group, const std::string& mount_root) {
  const auto path = std::filesystem::path(group).lexically_relative(mount_root);
  return path.empty() || path == "." || *path.begin() == ".." ? std::filesystem::path() : path;
}

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// quota / period of one group. A file that says "max" or -1, or is not there, sets no limit.
double core_limit(const std::filesystem::path& group, bool unified) {
  double quota = 0, period = 0;
  if (unified) {
    std::ifstream(group / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

double memory_limit(const std::filesystem::path& group, bool unified) {
  double bytes = 0;
  std::ifstream(group / (unified ? "memory.max" : "memory.limit_in_bytes")) >> bytes;
  return bytes > 0 ? bytes : kNoLimit;
}

/// What one group has left of its processes and threads.
double task_limit(const std::filesystem::path& group, bool /*unified*/) {
  double most = 0, now = 0;
  if (!(std::ifstream(group / "pids.max") >> most)) return kNoLimit;
  std::ifstream(group / "pids.current") >> now;
  return std::max(0.0, most - now);
}

/// The smallest limit from the process's own group up to the mount's root.
double smallest_limit(const std::string& controller,
                      double (*limit_of)(const std::filesystem::path&, bool),
                      const std::string& root, const ControlGroups& groups) {
  double smallest = kNoLimit;
  for (const Mount& mount : mounts_of(controller, groups.mounts)) {
    const std::filesystem::path top = root + mount.point;
    const auto path = below(group_of(controller, groups.groups, mount.unified), mount.root);
    for (auto group = path;; group = group.parent_path()) {
      smallest = std::min(smallest, limit_of(group.empty() ? top : top / group, mount.unified));
      if (group.empty()) break;
    }
  }
  return smallest;
}

}  // namespace

ControlGroups this_control_groups() {
  return {text_of("/proc/self/mountinfo"), text_of("/proc/self/cgroup")};
}

int cores_by_affinity() {
  // The kernel refuses a mask smaller than its own: grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    std::vector<cpu_set_t> mask(bytes / sizeof(cpu_set_t) + 1);
    if (sched_getaffinity(0, bytes, mask.data()) == 0)
      return std::max(1, CPU_COUNT_S(bytes, mask.data()));
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int cores_by_cgroup(int cores, const std::string& root, const ControlGroups& groups) {
  const double limit = smallest_limit("cpu", core_limit, root, groups);
  return std::min(cores, std::max(1, static_cast<int>(std::min(limit, 1e6))));
}

int64_t memory_by_cgroup(int64_t bytes, const std::string& root, const ControlGroups& groups) {
  const double limit = smallest_limit("memory", memory_limit, root, groups);
  return limit < static_cast<double>(bytes) ? static_cast<int64_t>(limit) : bytes;
}

int64_t tasks_by_cgroup(const std::string& root, const ControlGroups& groups) {
  const double limit = smallest_limit("pids", task_limit, root, groups);
  return limit < kNoLimit ? static_cast<int64_t>(limit) : INT64_MAX;
}

Machine this_machine() {
  Machine machine;
  machine.cores = cores_by_cgroup(cores_by_affinity(), "", this_control_groups());
  machine.path = fastest_path();
  return machine;
}

}  // namespace tutti
