// What an engine uses of its trainer. All of it belongs to the trainer, which outlives the engine.
#pragma once

#include "data/load/loader.h"
#include "engine/program_memory.h"
#include "engine/units.h"
#include "engine/updater.h"
#include "exec/trace.h"
#include "launch/local.h"

namespace tutti {

struct EngineParts {
  const Job& job;
  const Model& model;
  RankContext& context;
  const ModelShape& shape;
  const Plan& plan;
  const Plan& forward_plan;  ///< of evaluation
  Accounts& accounts;
  Trace& trace;
  const ProgramMemory& memory;
  const Units& units;
  const Updater& updater;
  Transport& transport;
  Loader& loader;

  const Plan& plan_of(Which which) const { return which == Which::kSteps ? plan : forward_plan; }
  const Program& program(Which which = Which::kSteps) const {
    return plan_of(which).programs[context.rank];
  }
  /// Where float 0 of a unit's gradient would be if all of it were here. `buffer` holds the
  /// gradient or a slice of it; from the returned pointer on, offsets are those of the unit.
  const float* gradient(int buffer) const {
    return memory.floats(buffer) - program().buffers[buffer].range.begin;
  }
};

}  // namespace tutti
