// Starts the ranks of a run on this host, as processes or threads, watches over them, and ends them
// together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/rank.h"
#include "launch/rank_host.h"

namespace tutti {

struct LaunchResult;

struct LaunchOptions {
  int ranks = 1;
  bool threads = false;
  Duration timeout = std::chrono::seconds(30);  ///< silence before a rank is given up
  /// Who forks the ranks, what it tells them, and descriptors that they keep; null: this process
  /// forks them, or they are threads of it.
  RankHost* host = nullptr;
  std::string task;
  std::vector<int> kept;
  /// Called in the launcher for each rank, once all are started.
  std::function<void(int rank, int pid)> started;
  /// Called in the launcher with the answer to a request to stop, at once.
  std::function<void(const std::string&)> say;
  /// Thread ranks cannot be killed. When one does not hear the cancel this is called, in the
  /// launcher, to end the whole process; without it the launcher waits.
  std::function<void(const LaunchResult&)> abandon;
};

/// How the run ended. `failures` are messages fit for the user: "rank 1 (pid 4711) was killed by
/// signal 9 (Killed)". The first is the cause, and all that a user should have to read; the others
/// are its echoes. Empty: all ranks returned.
struct LaunchResult {
  std::vector<std::string> failures;
  int signal = 0;  ///< that asked for a stop first; 0: none
  /// signals ended the run without saving; the failure says so, and has been said
  bool at_once = false;
  bool heeded = false;    ///< Control::heeded
  std::string result;     ///< Control::result
  std::vector<int> deaf;  ///< ranks that were cancelled, did not end by themselves, and were killed
  bool ok() const { return failures.empty(); }
};

/// Runs `body` on every rank (or with a host what that does) and returns when all have ended:
/// nothing of theirs is left over. Without a host processes are forked: call it before any ATen or
/// OpenMP work in this process. A rank that dies, throws or falls silent cancels all others: they
/// end within a second, and are killed if they do not. Ranks die with the launcher
/// (PR_SET_PDEATHSIG). SIGINT, SIGTERM and SIGHUP to the launcher, and SIGTERM to a rank, are
/// requests to stop (launch/stop.h). An exception in body is reported with its message; it never
/// crosses. Time in which the whole run was stopped counts for nobody's silence.
LaunchResult launch_local(const LaunchOptions& options,
                          const std::function<void(RankContext&)>& body);

}  // namespace tutti
