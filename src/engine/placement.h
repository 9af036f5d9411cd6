// Where a model is and how micro-batches go through it beside the steps: for evaluation, and to look for what went
// wrong.
#pragma once

#include <optional>
#include <vector>

#include "grid/grid.h"
#include "model/runner.h"
#include "model/segment.h"

namespace tutti {

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
  /// Where the model is cut: the first block on this rank that the next forward() gives an output that is not finite is
  /// noted in `block`, which must outlive it. Without one (null) nothing is looked at.
  virtual void watch(int* /*block*/) {}
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

}  // namespace tutti
