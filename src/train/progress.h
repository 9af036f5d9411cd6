// What a run has come to besides the values of its units: steps, what evaluations have shown, the
// loss scale. It commits as a slot that is swapped in does (Commit in plan/ir/shape.h): a step or
// an evaluation makes the next one, a pure function of the one before, which it then replaces as a
// whole.
#pragma once

#include "config/job.h"
#include "engine/verdict.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "state/state.h"

namespace tutti {

struct Progress {
  int64_t step = 0;  ///< steps committed
  Watched watched;
  LossScale scale;
  bool operator==(const Progress&) const = default;
};

Progress first_progress(const Job& job);
/// What the next step is asked for.
StepRequest request_after(const Job& job, const Progress& now);
/// `finite` says whether the step's loss and gradients were. If not, the step has written nothing.
Progress next_progress(const Job& job, const Progress& now, bool finite);

/// Progress as a checkpoint holds it. A run that goes on in another precision has a loss scale of
/// its own, but steps that were skipped stay skipped.
StateCounters counters_of(const Job& job, const Progress& progress);
Progress progress_from(const Job& job, const StateCounters& counters);

}  // namespace tutti
