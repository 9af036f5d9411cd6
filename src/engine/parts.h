// What the engines of a mesh share with their trainer, which outlives them.
#pragma once

#include "data/loader.h"
#include "engine/held.h"
#include "engine/memory.h"
#include "engine/update.h"
#include "exec/trace.h"
#include "launch/local.h"
#include "plan/make/mesh.h"

namespace tutti {

struct MeshParts {
  const Job& job;
  const Model& model;
  RankContext& context;
  const ModelShape& shape;
  const Plan& plan;
  const Plan& forward_plan;  ///< of evaluation
  const MeshOptions& options;
  const MeshOptions& forward_options;
  Accounts& accounts;
  Trace& trace;
  const MeshMemory& memory;
  const MeshUnits& units;
  const Updater& updater;
  Transport& transport;
  Loader& loader;
  const Program& program() const { return plan.programs[context.rank]; }
  /// Where float 0 of a unit's reduced gradient would lie, from the buffer that holds it or a slice of it.
  const float* gradient(int buffer) const { return memory.floats(buffer) - program().buffers[buffer].range.begin; }
};

}  // namespace tutti
