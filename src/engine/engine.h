// Runs a rank's programs: its steps, and evaluations between them. What segments compute is here;
// everything else is the backend's (engine/backend.h): on the host's cores or on a device. Both
// walk the same plan.
#pragma once

#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/nonfinite.h"
#include "engine/placement.h"

namespace tutti {

struct RankDevice;

class Engine final : public Placement {
 public:
  /// Runs on `device` if there is one; then the units and the memory of the parts are there.
  /// Collective.
  explicit Engine(const EngineParts& parts, const RankDevice* device = nullptr);
  ~Engine() override;

  /// Runs one step of the plan over all ranks. Throws CommError when a peer is lost. On the host's
  /// cores no step can follow one that was not finite, except by search().
  StepVerdict run(const StepRequest& request);
  /// How the last step was decided, and the rest of a step that ended with a CommError. Both are as
  /// Backend says.
  Decision decided() const { return backend_->decided(); }
  StepVerdict finish(const StepRequest& request, const Decision& decision) {
    return backend_->finish(request, decision);
  }
  /// Runs the last step, which was not finite, once more on micro-batches from `loader`, and
  /// returns the first place on this rank that is not finite. Collective.
  NonFinitePlace search(const StepRequest& request, Loader& loader);

  uint64_t order_digest() const { return station_.reports() ? backend_->order_digest() : 0; }
  double traced_seconds() const { return backend_->traced_seconds(); }
  std::function<void()> copy_out() { return backend_->copy_out(); }

  bool computes(int lane) const override { return station_.computes(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override;
  int64_t output_width() override { return station_.output_width(); }
  /// The options of a further runner over the same units.
  RunnerOptions options() const;

 private:
  void compute(Which which, const Instruction& instruction, const Turn& turn);
  void evaluate(const Instruction& forward);
  void look_at(const Instruction& instruction);
  PlanRunner& runner(Which which) { return which == Which::kSteps ? *steps_ : *forward_; }

  const EngineParts p_;
  const Station station_;
  const std::unique_ptr<Backend> backend_;
  const RunnerOptions options_;
  std::unique_ptr<PlanRunner> steps_, forward_;
  OutputParts outputs_;
  int64_t step_ = 0;
  Pass forward_pass_;
  const Instruction* forward_end_ = nullptr;
  bool searching_ = false;
  struct Looked {
    NonFinitePlace place;
    at::Tensor finite;
  };
  std::vector<Looked> looked_;  // at what instructions left, in their order
};

}  // namespace tutti
