// Collects what the system says in files and calls, and measures the rates of the cores. Whatever
// is not said stays at its default, which the report shows as unknown.
#include "app/doctor/doctor_host.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "app/at_once.h"
#include "base/processor.h"
#include "base/wait.h"
#include "config/job.h"
#include "config/machine.h"
#include "device/library.h"
#include "tensor/kernels.h"
#include "tensor/rate.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

/// What follows the first "name : " in a file like /proc/cpuinfo.
std::string field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

int64_t kib_of(const std::string& name) {
  const std::string text = field_of("/proc/meminfo", name);
  return text.empty() ? 0 : std::strtoll(text.c_str(), nullptr, 10) * 1024;
}

/// torch/version.py says __version__ = '2.11.0+cu130'.
std::string installed_torch(const std::string& folder) {
  std::ifstream file(std::filesystem::path(folder).parent_path() / "version.py");
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find('\''), end = line.rfind('\'');
    if (line.starts_with("__version__ =") && begin < end)
      return line.substr(begin + 1, end - begin - 1);
  }
  return {};
}

int64_t limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

/// Bytes per second that all cores together read and write while each copies its own memory; the
/// best of several.
double copy_rate(int cores, int64_t memory) {
  const size_t each =
      static_cast<size_t>(std::clamp<int64_t>(memory / 16 / cores, 1 << 20, 64 << 20));
  constexpr int kTimes = 6;
  SystemClock clock;
  std::vector<Time> times(kTimes + 1);
  int round = 0;

  // Cores begin each copy together, and the clock is read once by whoever comes last: what is
  // measured is all cores at once.
  std::barrier meeting(cores,
                       [&]() noexcept { times[static_cast<size_t>(round++)] = clock.now(); });
  at_once(cores, [&](int) {
    std::vector<char> from(each, 1), to(each);
    meeting.arrive_and_wait();
    for (int i = 0; i < kTimes; ++i) {
      std::memcpy(to.data(), from.data(), each);
      from[0] = to[each - 1];  // the copy is used
      meeting.arrive_and_wait();
    }
  });
  double best = 1e9;
  for (size_t i = 0; i < kTimes; ++i)
    best = std::min(best, std::chrono::duration<double>(times[i + 1] - times[i]).count());
  return 2.0 * static_cast<double>(each) * cores / best;
}

}  // namespace

HostReport look_at_host() {
  HostReport report;
  report.processor = field_of("/proc/cpuinfo", "model name");
  report.cores_online = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  report.cores_by_affinity = cores_by_affinity();
  const Machine machine = this_machine();
  report.cores = machine.cores;
  report.path = machine.path;

  // A container may see all of the machine's memory and be allowed less.
  report.memory = kib_of("MemTotal");
  report.memory_available = kib_of("MemAvailable");
  report.memory_limit = memory_by_cgroup(report.memory, "", this_control_groups());

  // LibTorch as it is installed may be another one than this command was built with.
  report.torch_folder = torch_folder();
  report.torch_version = installed_torch(report.torch_folder);
  report.torch_built = TORCH_VERSION;

  // Runs go to `runs` in the current folder; where it does not exist yet, its parent is looked at.
  // A folder that cannot be asked has no room.
  std::error_code none;
  const std::filesystem::path here = std::filesystem::current_path(none);
  const std::filesystem::path runs =
      std::filesystem::is_directory(here / "runs", none) ? here / "runs" : here;
  report.runs_folder = runs.string();
  const auto space = std::filesystem::space(runs, none);
  report.disk_free = none ? 0 : static_cast<int64_t>(space.available);
  report.runs_writable = ::access(runs.c_str(), W_OK) == 0;

  // Limits that large jobs run into: NCCL connects ranks through /dev/shm, ranks have sockets and
  // files, and pinned memory is locked.
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    report.shm_size = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
  report.open_files = limit_of(RLIMIT_NOFILE);
  report.locked_memory = limit_of(RLIMIT_MEMLOCK);
  return report;
}

void measure_host(HostReport& report) {
  choose_library_isa();
  prepare_compute_thread(1);
  SystemClock clock;
  const Matmul& matmul = kernels(fastest_path()).matmul;
  report.matmul_flops = matmul_gflops(matmul, clock) * 1e9;
  report.copy_bytes =
      copy_rate(report.cores, std::min(report.memory_available, report.memory_limit));
}

}  // namespace tutti
