// A step of a mesh's program on the host's cores: ZeRO, tensor and pipeline ranks and their hybrids (plan/mesh.h).
#pragma once

#include <memory>

#include "plan/mesh.h"
#include "train/engine.h"
#include "train/held.h"
#include "train/mesh_memory.h"

namespace tutti {

/// What the engine shares with its trainer, which outlives it.
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
};

/// Collective: copies of shared parameters on other ranks than their owners' are made here.
std::unique_ptr<Engine> make_mesh_engine(const MeshParts& parts);

/// Whether every rank's window can be read.
bool reaches_all(const Transport& transport);
/// What the rank's transfers hold for messages besides the program's buffers.
int64_t message_bytes(const Plan& plan, const ModelShape& shape, const MeshOptions& options, int rank, bool windows);

}  // namespace tutti
