// The command line as a library: the `tutti` command itself, and the same `train` for a C++ program
// with a model of its own.
#pragma once

#include <string>

#include "train/run.h"

namespace tutti {

/// For a user's program: `prog [--ranks N] [--steps N] [--set section.key=value]... [--out DIR]
/// [--resume RUN]`. `job` is TOML text (it may start from a built-in with base = "..."). Returns
/// the process's exit code. `partition` is used where the job says layout.partition = "own".
int train_main(int argc, char** argv, const MakeModel& make_model, const std::string& job,
               const OwnPartition& partition = {});

/// The `tutti` command. `build` is what --version says of its sources.
int tutti_main(int argc, char** argv, const std::string& build);

}  // namespace tutti
