// What follows from the vote, the same for both of the host's engines.
#pragma once

#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "optim/optimizer.h"
#include "train/engine.h"
#include "train/vote.h"

namespace tutti {

/// All ranks' votes as one. Collective.
Vote vote_of(const Vote& mine, Channel& channel);
/// What a step's updates are computed with.
StepScalars scalars_of(const TrainConfig& train, const StepRequest& request, const Vote& all);
/// train.clip_by = "unit": every rank summed the squares of its slices; a unit's are all ranks'. Collective.
void share_unit_squares(std::vector<ExactSum>& by_unit, Channel& channel);
/// ... and the factor of one unit's gradient.
double unit_clip(const TrainConfig& train, const ExactSum& squares, const Vote& all);

}  // namespace tutti
