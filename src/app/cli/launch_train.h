// `tutti train` as its launcher sees it: another program settles the job and forks the ranks
// (launch/rank_host.h); this one has the run's folder, watches over the ranks and has the last
// word. Needs no LibTorch.
#pragma once

#include <string>

#include "train/run.h"

namespace tutti {

/// The text that the program sends when it is ready: the run as it has settled it, with the job,
/// the folders and the last step of `options`.
std::string ready_text(const RunOptions& options);
/// The text instead of it if the ranks are threads: these run in that program without a launcher.
inline constexpr const char* kReadyAlone = "alone";
/// The variable that tells a program to run its thread ranks by itself.
inline constexpr const char* kAlone = "TUTTI_ALONE";

/// Executes `program` with these arguments to have it settle the job and fork ranks, and launches
/// them. Returns the exit code.
int launch_train(const std::string& program, int argc, char** argv);

/// Sets what a launcher prints about its run: each rank's process, the answer to a request to stop,
/// and ranks that do not end.
void tell_of_run(RunOptions& options);
/// Prints how the run ended and returns the exit code: 0, or 1 if the run failed. If it was
/// stopped, the code is 130 for Ctrl-C, 143 for SIGTERM and 129 for SIGHUP.
int report(const RunResult& result);

}  // namespace tutti
