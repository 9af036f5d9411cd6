// `tutti train`, apart from how its arguments were read.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "app/cli/settle.h"
#include "train/run.h"

namespace tutti {

/// The job that the arguments mean, resolved for this machine, the library paths chosen for its
/// ISA.
Prepared prepare(const TrainArguments& arguments);
inline Job job_of(const TrainArguments& arguments) { return prepare(arguments).job; }

/// The job of a run, resolved for this host's cores whatever it was trained on: for commands that
/// only use the model.
Job job_on_host(const std::string& run);

/// Trains. Where a launcher executed this process (launch/rank_host.h) it prints the header and
/// forks the launcher's ranks; else it launches them itself, prints header and hash, and returns
/// the exit code (app/cli/launch_train.h). Output that cannot be written does not end a training:
/// the caller finds it when it flushes stdout.
int train_command(const TrainArguments& arguments, const MakeModel& make_model,
                  const OwnPartition& partition = {});

}  // namespace tutti
