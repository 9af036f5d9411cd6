// What runs a rank's steps: on the host's cores (host_engine.cc) or on a device (device_engine.cc). Both walk the same
// program; a Trainer owns one and everything that is the same for both.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "data/loader.h"
#include "engine/gradients.h"
#include "engine/placement.h"
#include "engine/units.h"
#include "engine/update.h"
#include "engine/vote.h"
#include "exec/trace.h"
#include "grid/grid.h"
#include "launch/local.h"
#include "plan/ir/program.h"

namespace tutti {

/// What an engine shares with its trainer, which outlives it.
struct EngineParts {
  const Job& job;
  const Model& model;
  RankContext& context;
  const ModelShape& shape;
  const Plan& plan;
  const GradientPlaces& places;
  Batch batch;
  Range lanes;
  Accounts& accounts;
  Trace& trace;
  Units& units;
  const Updater& updater;
  Transport& transport;
  Loader& loader;
  const Program& program() const { return plan.programs[context.rank]; }
};

struct StepRequest {
  int64_t step = 0;     ///< steps committed before it
  int64_t updates = 0;  ///< of them, those that updated: in float16 some are skipped
  double lr = 0;
  double loss_scale = 1;
};

/// The same on every rank.
struct StepVerdict {
  double loss = 0, gradient_norm = 0;
  bool finite = true;  ///< false: nothing of the step was written
  bool stop = false;   ///< a rank was asked to stop
};

class Engine {
 public:
  virtual ~Engine() = default;
  /// The plan once, over all ranks. Throws CommError when a peer is lost. After a step that was not finite the host's
  /// engine can run no further one.
  virtual StepVerdict run(const StepRequest& request) = 0;
  virtual Placement& placement() = 0;
  /// Of what the steps so far were computed from: the loader may be a step ahead.
  virtual uint64_t order_digest() const = 0;
  /// Of the steps that the trace has, where that is not all of them; else 0.
  virtual double traced_seconds() const { return 0; }
  /// Begins to copy the state out beside the next steps. The returned function waits for the copy; from another thread,
  /// too. Null: state is in the host's memory and may be read until the next step.
  virtual std::function<void()> copy_out() { return nullptr; }
};

std::unique_ptr<Engine> make_host_engine(const EngineParts& parts);

}  // namespace tutti
