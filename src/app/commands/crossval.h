// `tutti crossval JOB --folds 5`: the job once for every fold, folds side by side on the cores.
#pragma once

#include "app/train_command.h"

namespace tutti {

/// Every fold is a run RUN/fold-N of its own whose held-out records are that fold, all of them;
/// RUN/crossval.json has the metrics of each, their means and deviations. Each fold runs on
/// `arguments.ranks` ranks (0: one); as many folds run at once as cores allow. Returns an exit
/// code.
int crossval_command(const TrainArguments& arguments, int64_t folds, const MakeModel& make_model);

}  // namespace tutti
