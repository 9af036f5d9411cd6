// Reads what the system allows from rlimits, /proc and the control groups, and counts the files and
// threads that a rank takes, by its kind and its transport.
#include "launch/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "config/job_parts.h"
#include "config/machine.h"

namespace tutti {

namespace {

// What a rank takes: threads for the compute, its queues, the loader, the connections, the heart
// and a checkpoint.
constexpr int64_t kThreadsOfRank = 9;
// What a process has open besides: libraries, the run's files, its outputs.
constexpr int64_t kOtherFiles = 64;
// Of a rank's files in its own process or thread: its data, and what the connections wait on.
constexpr int64_t kFilesOfRank = 3;

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

/// Processes and threads of the system: the number after the slash in "0.20 0.18 0.12 1/80 11206".
int64_t threads_of_system() {
  std::ifstream file("/proc/loadavg");
  std::string word;
  for (int i = 0; i < 4; ++i) file >> word;
  return std::atoll(word.substr(word.find('/') + 1).c_str());
}

/// Processes and threads of this user, as far as /proc shows them.
int64_t threads_of_user() {
  int64_t threads = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    struct stat owner {};
    const std::string path = entry.path(), name = entry.path().filename();
    const bool process = name.find_first_not_of("0123456789") == std::string::npos;
    if (!process || ::stat(path.c_str(), &owner) != 0 || owner.st_uid != ::getuid()) continue;
    // The number is the 20th word; the second, in brackets, may have blanks.
    std::ifstream file(path + "/stat");
    std::string text(std::istreambuf_iterator<char>(file), {});
    std::istringstream words(text.substr(std::min(text.rfind(')') + 1, text.size())));
    std::string word;
    for (int i = 3; i <= 20; ++i) words >> word;
    threads += std::atoll(word.c_str());
  }
  return threads;
}

/// The most files that any process of a run has open at once, for so many ranks.
int64_t files_for(const LayoutConfig& layout, int64_t ranks) {
  const bool threads = layout.workers == Workers::kThread;
  // Ranks on GPUs meet on the host, too.
  const auto* transport = &part_named<TransportPart>(layout.transport);
  if (transport->gpu)
    transport = &part_named<TransportPart>(std::string(automatic_transport(false, layout.workers)));

  // Peers that a rank has connections with: all, or where memory is shared those of other hosts.
  // Between threads hosts are only pretended, and no such thing is needed.
  const int64_t peers = !transport->windows    ? ranks - 1
                        : transport->processes ? ranks - ranks / std::max<int64_t>(1, layout.hosts)
                                               : 0;
  const int64_t connections = peers * layout.connections;
  if (threads) return kOtherFiles + ranks * (kFilesOfRank + connections);

  // The launcher has both ends of a rank's socket while it starts. Later it has one, and while
  // memory is shared out the two descriptors of the rank's card.
  const int64_t launcher = transport->windows ? 3 : 2;
  return kOtherFiles + std::max(ranks * launcher, kFilesOfRank + connections);
}

}  // namespace

HostLimits host_limits() {
  HostLimits limits;
  limits.files = limit_of(RLIMIT_NOFILE, true);

  const int64_t system =
      std::min(number_in("/proc/sys/kernel/threads-max"), number_in("/proc/sys/kernel/pid_max")) -
      threads_of_system();
  limits.threads =
      std::min(std::max<int64_t>(0, system), tasks_by_cgroup("", this_control_groups()));
  // The system does not hold root to a limit of its processes.
  const int64_t user = ::getuid() == 0 ? INT64_MAX : limit_of(RLIMIT_NPROC, false);
  if (user != INT64_MAX)
    limits.threads = std::min(limits.threads, std::max<int64_t>(0, user - threads_of_user()));
  return limits;
}

std::string too_many_ranks(const LayoutConfig& layout, const HostLimits& limits) {
  const auto by_files = [&](int64_t ranks) { return files_for(layout, ranks) <= limits.files; };
  const auto by_threads = [&](int64_t ranks) { return ranks * kThreadsOfRank <= limits.threads; };
  int64_t most = 1;
  while (most < layout.ranks && by_files(most + 1) && by_threads(most + 1)) ++most;
  if (most >= layout.ranks) return "";
  return fmt::format(
      "layout.ranks = {}: this host starts at most {} ranks of workers \"{}\" over "
      "{}: {} allow no more",
      layout.ranks, most, layout.workers, layout.transport,
      by_files(most + 1) ? fmt::format("{} further threads", limits.threads)
                         : fmt::format("{} open files (ulimit -Hn)", limits.files));
}

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tutti
