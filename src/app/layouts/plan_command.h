// `tutti plan JOB --ranks N`: the layouts of a job on N ranks, ranked by their predicted step.
#pragma once

#include "app/cli/arguments.h"
#include "train/run.h"

namespace tutti {

/// Prints the best ten, what was rejected and why, and the largest micro-batch. Throws ConfigError
/// when nothing fits. A job of a GPU is planned on any host: rates of a GPU are assumed, and only
/// its memory is that of the one that is here.
int plan_command(const PlanArguments& arguments, const MakeModel& make_model);

/// The resolved job with the best layout, for layout.plan = "auto". The job will run here, so the
/// host must have the GPU that it asks for. Runs ATen unless `quick`: a process that goes on to
/// fork ranks asks for it in a child.
Job planned_job(const PlanArguments& arguments, const MakeModel& make_model);

}  // namespace tutti
