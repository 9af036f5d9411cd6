// What is settled about a job's layout before any rank starts: the planner's choice where it is
// asked for, and whether the model can run on the mesh at all.
#pragma once

#include "app/train_command.h"

namespace tutti {

/// The arguments, with the planner's choice among their settings if layout.plan = "auto". A run
/// that goes on keeps its layout.
TrainArguments with_planned_layout(TrainArguments arguments, const MakeModel& make_model);

/// Throws ConfigError naming why the model cannot run on the job's mesh and the nearest ones on
/// which it can, of as many ranks or else of fewer; or that its offloaded values find no place.
/// `fresh`: its first values come from the job.
void refuse_bad_mesh(const Job& job, const MakeModel& make_model, bool fresh);

}  // namespace tutti
