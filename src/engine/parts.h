// What an engine uses of its trainer. All of it belongs to the trainer, which outlives the engine.
#pragma once

#include <atomic>

#include "data/load/loader.h"
#include "engine/held_state.h"
#include "engine/updater.h"
#include "exec/trace.h"
#include "launch/rank.h"
#include "plan/ir/plans.h"

namespace tutti {

/// What is trained, and by what rule.
struct Training {
  const Job& job;  ///< in the epoch's layout
  const Model& model;
  const ModelShape& shape;
  const Updater& updater;
};

/// What is counted and noted while the engine runs.
struct Gauges {
  Accounts& accounts;
  Trace& trace;
};

/// How far a checkpoint is that is written beside the steps.
struct Saving {
  /// Values are being copied from where they are: until it is done nothing may change them, so no
  /// vote is given.
  std::atomic<bool> copying{false};
  std::atomic<bool> writing{false};  ///< this rank's share is being written: its votes say so
};

struct EngineParts {
  const Training training;
  const Plans& plans;
  const HeldState& state;  ///< both of its parts are there
  RankContext& context;
  Transport& transport;
  Loader& loader;
  const Saving& saving;
  const Gauges gauges;

  const Program& program(Which which = Which::kSteps) const {
    return plans.of(which).programs[context.rank];
  }
  /// Where float 0 of a unit's gradient would be if all of it were here. `buffer` holds the
  /// gradient or a slice of it; from the returned pointer on, offsets are those of the unit.
  const float* gradient(int buffer) const {
    return state.memory->floats(buffer) - program().buffers[buffer].range.begin;
  }
};

}  // namespace tutti
