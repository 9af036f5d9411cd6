// `tutti data JOB`: what a job's data is, before anything is trained on it.
#pragma once

#include "app/train_command.h"

namespace tutti {

/// Prints the parts, the classes, what was skipped and why, the statistics, how a partition over
/// the job's ranks would share the records out, and the digest of the order.
int data_command(const TrainArguments& arguments);

}  // namespace tutti
