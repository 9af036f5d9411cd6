#include "launch/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

namespace tutti {

namespace {

// What a rank takes: threads for the compute, its queues, the loader, the connections and the
// heart; of the launcher two files, its ends of two sockets while it starts.
constexpr int64_t kThreadsOfRank = 8, kFilesOfRank = 2, kOtherFiles = 64;
// Thread ranks share the files of one process: an event for each, and its data.
constexpr int64_t kFilesOfThread = 3;

int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : INT64_MAX;
}

int64_t limit_of(decltype(RLIMIT_NOFILE) what, bool hard) {
  rlimit limit{};
  if (::getrlimit(what, &limit) != 0) return INT64_MAX;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(value);
}

}  // namespace

HostLimits host_limits() {
  HostLimits limits;
  limits.files = limit_of(RLIMIT_NOFILE, true);
  int64_t group = number_in("/sys/fs/cgroup/pids.max");
  if (group != INT64_MAX) group -= std::min(group, number_in("/sys/fs/cgroup/pids.current"));
  limits.threads =
      std::min({limit_of(RLIMIT_NPROC, false), group, number_in("/proc/sys/kernel/threads-max"),
                number_in("/proc/sys/kernel/pid_max")});
  return limits;
}

std::string too_many_ranks(int64_t ranks, bool threads, const HostLimits& limits) {
  const int64_t by_files = (limits.files - kOtherFiles) / (threads ? kFilesOfThread : kFilesOfRank);
  const int64_t by_threads = limits.threads / kThreadsOfRank;
  const int64_t most = std::max<int64_t>(1, std::min(by_files, by_threads));
  if (ranks <= most) return "";
  return fmt::format("layout.ranks = {}: this host starts at most {} ranks ({} allow no more)",
                     ranks, most,
                     by_files < by_threads ? fmt::format("{} open files, ulimit -Hn", limits.files)
                                           : fmt::format("{} threads", limits.threads));
}

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tutti
