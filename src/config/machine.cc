#include "config/machine.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "config/job.h"

namespace tutti {

namespace {

int cores_by_affinity() {
  // The kernel refuses a mask smaller than its own: grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    std::vector<cpu_set_t> mask(bytes / sizeof(cpu_set_t) + 1);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, mask.data()));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

/// The group's path in the cgroup v2 hierarchy: the line "0::/path".
std::string unified_group(const std::string& membership) {
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("0::/", 0) == 0) return line.substr(4);
  }
  return {};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int cores_by_cgroup(int cores, const std::string& root, const std::string& membership) {
  std::filesystem::path group = std::filesystem::path(root) / unified_group(membership);
  while (true) {
    std::ifstream file(group / "cpu.max");
    double quota = 0, period = 0;  // "max 100000" reads no quota
    if (file >> quota >> period && quota > 0 && period > 0) {
      cores = std::min(cores, std::max(1, static_cast<int>(std::min(quota / period, 1e6))));
    }
    if (group == root || !group.has_relative_path()) return cores;
    group = group.parent_path();
  }
}

// The kernels are compiled for x86-64-v3 and x86-64-v4: ask for all that those levels use.
Machine this_machine() {
  Machine machine;
  machine.cores = cores_by_cgroup(cores_by_affinity(), "/sys/fs/cgroup", text_of("/proc/self/cgroup"));
#if defined(__x86_64__)
  __builtin_cpu_init();
  machine.amd = __builtin_cpu_is("amd");
  machine.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  machine.avx512 = machine.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
#endif
  return machine;
}

}  // namespace tutti
