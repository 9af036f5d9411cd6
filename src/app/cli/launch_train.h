// `tutti train` as its launcher sees it: another program settles the job and forks the ranks
// (launch/rank_host.h); this one has the run's folder, watches over the ranks and has the last
// word. Needs no LibTorch.
#pragma once

#include <string>

#include "train/run.h"

namespace tutti {

/// What the program says when it is ready: the run as it settled it. `options` has the job, the
/// folders and the last step.
std::string ready_text(const RunOptions& options);
/// Says instead that its ranks are threads, which run in the program alone.
inline constexpr const char* kReadyAlone = "alone";
/// In the environment of a program that is to run its thread ranks by itself.
inline constexpr const char* kAlone = "TUTTI_ALONE";

/// Executes `program` with these arguments to have it settle the job and fork ranks, and launches
/// them. Returns the exit code.
int launch_train(const std::string& program, int argc, char** argv);

/// What a launcher tells of its run: each rank's process, the answer to a request to stop, ranks
/// that do not end.
void tell_of_run(RunOptions& options);
/// The last words, and the exit code: 0; 1 where the run failed; where it was stopped 130 by
/// Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.
int report(const RunResult& result);

}  // namespace tutti
