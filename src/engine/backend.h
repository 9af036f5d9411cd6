// What runs an engine's programs on one kind of processor: memory is where the plan says; how
// values travel, what a vote is, where input comes from and who walks the program differ. There are
// two: the host's cores (engine/host) and a device (engine/device).
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
  uint64_t round = 0;  ///< of its program, from 0
  Stream stream{};     ///< on a device: what it is put on
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// How segments of a program run here.
  virtual RunnerOptions runner_options(Which which) = 0;
  /// Forward and Backward of either program, which are the engine's; all other instructions are the
  /// backend's own.
  using Compute =
      std::function<void(Which which, const Instruction& instruction, const Turn& turn)>;
  /// Once, before anything runs. Collective.
  virtual void start(Compute compute) = 0;

  /// The micro-batch that an instruction's segment reads; none where it reads no data.
  virtual std::span<const at::Tensor> data(Which which, const Instruction& instruction) const = 0;
  /// Of a micro-batch in training; on a device its keys are there, and are those of the last step
  /// that ran.
  virtual Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const = 0;
  /// `loss`: the sum of a micro-batch's losses and their count.
  virtual void count_loss(const Instruction& forward, const at::Tensor& loss, const Turn& turn) = 0;

  /// A step over all ranks.
  virtual StepVerdict run(const StepRequest& request) = 0;
  /// Of the last step that was decided, as far as this rank knows.
  virtual Decision decided() const { return {}; }
  /// Does what is left of a step that run() left with a CommError, now that it is known how it was
  /// decided: Updates, and what moves their values on this rank. New parameters reach no other
  /// rank. Nothing runs after it.
  virtual StepVerdict finish(const StepRequest& request, const Decision& decision);
  /// The last step once more, none of which was committed, on micro-batches from `loader`. Nothing
  /// is written.
  virtual void repeat(const StepRequest& request, Loader& loader) = 0;
  /// The program of evaluation on a micro-batch in the host's memory; all has run when it returns.
  virtual void evaluate(const std::vector<at::Tensor>& batch) = 0;
  /// ... and where its tensors were then.
  virtual std::vector<at::Tensor> evaluated() const = 0;
  /// How columns of an evaluation's output come together.
  virtual MoveOutput move_output() = 0;

  /// Of what the steps so far were computed from.
  virtual uint64_t order_digest() const = 0;
  /// Seconds of the traced steps, if only some are traced; else 0.
  virtual double traced_seconds() const { return 0; }
  /// Begins to copy the state out alongside the next steps. The returned function waits for the
  /// copy, on any thread. Null: state is in the host's memory and may be read until the next step.
  virtual std::function<void()> copy_out() { return nullptr; }
};

std::unique_ptr<Backend> make_host_backend(const EngineParts& parts, const Station& station);

}  // namespace tutti
