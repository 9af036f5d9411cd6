// `tutti explain`.
#pragma once

#include "app/cli/arguments.h"

namespace tutti {

/// Shows the whole job, as it would be run here. Needs no LibTorch but to ask for GPUs, where there
/// is a driver and the job may want them. Returns the exit code.
int explain_command(const TrainArguments& arguments);

}  // namespace tutti
