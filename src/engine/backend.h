// What runs an engine's programs on one kind of processor. Memory is where the plan says on both;
// how values travel, how ranks vote, where input comes from and who walks the program differ. There
// are two backends: the host's cores (engine/host) and a device (engine/device).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/output.h"
#include "engine/parts.h"
#include "engine/station.h"
#include "engine/verdict.h"
#include "model/core/plan_runner.h"

namespace tutti {

/// When and where an instruction runs.
struct Turn {
  uint64_t run = 0;  ///< of its program, from 0
  Stream stream{};   ///< on a device: what it is put on
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// How the segments of a program run here.
  virtual RunnerOptions runner_options(Which which) = 0;
  /// Computes the Forward and Backward of either program, which are the engine's part; all other
  /// instructions are the backend's own.
  using Compute =
      std::function<void(Which which, const Instruction& instruction, const Turn& turn)>;
  /// Called once, before anything runs. Collective.
  virtual void start(Compute compute) = 0;

  /// The micro-batch that an instruction's segment reads; empty where it reads no data.
  virtual std::span<const at::Tensor> data(Which which, const Instruction& instruction) const = 0;
  /// The pass of a micro-batch in training. On a device its keys are in device memory, and are
  /// those of the last step that ran.
  virtual Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const = 0;
  /// `loss` is the sum of the losses of a micro-batch, and their count.
  virtual void count_loss(const Instruction& forward, const at::Tensor& loss, const Turn& turn) = 0;

  /// Runs a step over all ranks.
  virtual StepVerdict run(const StepRequest& request) = 0;
  /// How the last decided step was decided, as far as this rank knows.
  virtual Decision decided() const { return {}; }
  /// Does what is left of a step that run() left with a CommError, now that it is known how it was
  /// decided: Updates, and what moves their values on this rank. New parameters reach no other
  /// rank. Nothing runs after it.
  virtual StepVerdict finish(const StepRequest& request, const Decision& decision);
  /// Must come before repeat() when it will compute more than steps do: runs that once without the
  /// messages that could make ranks wait for each other. Nothing of what it computes has a meaning.
  virtual void rehearse() {}
  /// Runs the last step, of which nothing was committed, once more on micro-batches from `loader`.
  /// It writes nothing.
  virtual void repeat(const StepRequest& request, Loader& loader) = 0;
  /// Runs the program of evaluation on a micro-batch in the host's memory; all of it has
  /// run when this returns.
  virtual void evaluate(const std::vector<at::Tensor>& batch) = 0;
  /// Where the tensors of that micro-batch were.
  virtual std::vector<at::Tensor> evaluated() const = 0;
  /// How the columns of an evaluation's output come together.
  virtual MoveOutput move_output() = 0;

  /// The digest of the samples that the steps so far were computed from, and of their order.
  virtual uint64_t order_digest() const = 0;
  /// Seconds of the traced steps, if only some are traced; else 0.
  virtual double traced_seconds() const { return 0; }
  /// Begins to copy the state out alongside the next steps. The returned function waits for the
  /// copy, on any thread. Null means that the state is in the host's memory and may be read there
  /// until the next step.
  virtual std::function<void()> copy_out() { return nullptr; }
};

std::unique_ptr<Backend> make_host_backend(const EngineParts& parts, const Station& station);

}  // namespace tutti
