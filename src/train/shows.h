// What a run shows of its model besides metrics, because its job asks for it: something that the
// held-out loss is compared with, what the model says at the end. Training does not know how: who
// runs it brings the functions (infer/add_inference.h).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "config/job.h"
#include "data/core/dataset.h"
#include "model/make_model.h"

namespace tutti {

class Trainer;

/// A loss that costs nothing to reach, and what it is called where it is shown.
struct Baseline {
  std::string name;
  double loss = 0;
};

/// The end of a run, as rank 0 sees it.
struct Finished {
  const Job& job;
  const MakeModel& make_model;
  const Model& model;
  Trainer& trainer;
  std::string checkpoints;       ///< the folder; its latest has the whole state
  std::function<bool()> enough;  ///< the run was asked to stop
};

/// A null function, and one that returns nothing, shows nothing. Called on rank 0 alone.
struct Shows {
  std::function<std::optional<Baseline>(const Job&, const Split&)> baseline;
  std::function<std::optional<std::string>(const Finished&)> sample;
};

}  // namespace tutti
