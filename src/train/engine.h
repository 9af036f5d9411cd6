// What runs a rank's steps: on the host's cores (host_engine.cc) or on a device (device_engine.cc). Both walk the same
// program; a Trainer owns one and everything that is the same for both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "data/loader.h"
#include "exec/trace.h"
#include "grid/grid.h"
#include "launch/local.h"
#include "model/runner.h"
#include "plan/program.h"
#include "train/gradients.h"
#include "train/units.h"
#include "train/update.h"
#include "train/vote.h"

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

/// What a micro-batch came to.
struct Evaluated {
  Loss loss;
  at::Tensor output;             ///< Model::output; undefined where the model names none
  std::vector<at::Tensor> data;  ///< the micro-batch, where the output lies
};

/// A model on a processor, or cut over several ranks of a mesh: how micro-batches go through it beside the steps.
class Placement {
 public:
  virtual ~Placement() = default;
  /// Whether this rank takes part in the lane's micro-batches, alone or with others.
  virtual bool computes(int lane) const = 0;
  /// Forward of a micro-batch in the host's memory. Every rank that computes the lane calls it, in the same order; one
  /// of them gets what it came to, the others nothing. Valid until the next call.
  virtual std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) = 0;
  /// The last dim of Model::output; 0 where the model names none.
  virtual int64_t output_width() = 0;
  /// The whole model on this rank; null where it is cut.
  virtual ModelRunner* runner() = 0;
  /// A micro-batch in the host's memory as the runner takes it.
  virtual std::vector<at::Tensor> placed(const std::vector<at::Tensor>& data) { return data; }
  /// Waits until what the runner was asked for has run: not for ever, where it runs on a device.
  virtual void settle(const char* /*operation*/) {}
  /// A micro-batch's pass in training; on a device its keys lie there, and are those of the last step that ran.
  virtual Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const = 0;
  /// For a further runner over the same units, beside steps.
  virtual RunnerOptions options() const { return {}; }
};

/// A runner of the whole model.
class WholePlacement : public Placement {
 public:
  WholePlacement(const Model& model, Range lanes) : model_(model), lanes_(lanes) {}
  bool computes(int lane) const override { return lanes_.contains(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override;
  int64_t output_width() override;

 private:
  const Model& model_;
  const Range lanes_;
};

/// On the host, where there is nothing to place.
class HostPlacement final : public WholePlacement {
 public:
  HostPlacement(const Model& model, ModelRunner& runner, const Batch& batch, Range lanes)
      : WholePlacement(model, lanes), runner_(runner), batch_(batch) {}
  ModelRunner* runner() override { return &runner_; }
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(batch_, step, lane, micro)};
  }

 private:
  ModelRunner& runner_;
  Batch batch_;
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
