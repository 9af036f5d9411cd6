// Starts the ranks of a run on this host, as processes or threads, watches over them, and ends them together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/wait.h"
#include "net/rendezvous.h"

namespace tutti {

/// Shared by the launcher and all ranks (an anonymous shared mapping for processes).
struct Control {
  static constexpr int kMaxRanks = 256;
  Cancel cancel;
  std::atomic<uint32_t> stop{0};  ///< Ctrl-C: finish the step, save, end
  char result[256] = {};          ///< what rank 0 hands back to the launcher
  struct Rank {
    std::atomic<int64_t> beat{0};  ///< steady-clock nanoseconds of the last heartbeat
    std::atomic<uint64_t> step{0};
    std::atomic<uint32_t> done{0};      ///< left its function: silence is no longer a fault
    std::atomic<int64_t> failed_at{0};  ///< steady-clock nanoseconds; 0: it has not
    char message[1024] = {};            ///< what its function threw
  } ranks[kMaxRanks];
};

/// What a rank's function gets.
struct RankContext {
  int rank = 0, size = 1;
  Clock& clock;
  Control& control;
  Rendezvous& rendezvous;
  /// Notes the time of a failure. Call it before what others wait for is torn down: who lost whom is told by it.
  void failing() const;
};

struct LaunchOptions {
  int ranks = 1;
  bool threads = false;
  Duration timeout = std::chrono::seconds(30);     ///< silence before a rank is given up
  std::function<void(int rank, int pid)> started;  ///< in the launcher, for each rank, once all are started
};

/// How the run ended. `failures` are messages fit for the user, the cause first: "rank 1 (pid 4711) was killed by
/// signal 9 (Killed)"; empty: all ranks returned.
struct LaunchResult {
  std::vector<std::string> failures;
  bool stopped = false;   ///< by Ctrl-C or SIGTERM
  std::string result;     ///< Control::result
  std::vector<int> deaf;  ///< ranks that were cancelled, did not end by themselves, and were killed
  bool ok() const { return failures.empty(); }
};

/// Runs `body` on every rank and returns when all have ended: nothing of theirs is left over. Processes are forked:
/// call it before any ATen or OpenMP work in this process. A rank that dies, throws or falls silent cancels all others:
/// they end within a second, and are killed if they do not. Ranks die with the launcher (PR_SET_PDEATHSIG). SIGINT and
/// SIGTERM set Control::stop; a second one cancels. An exception in body is reported with its message; it never
/// crosses.
LaunchResult launch_local(const LaunchOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace tutti
