// The engine runs segments and leaves everything else to its backend. Both call back into it for
// every Forward and Backward.
#include "engine/engine.h"

#include <utility>

#include "base/error.h"
#include "engine/device/device_backend.h"

namespace tutti {

namespace {

std::unique_ptr<Backend> make_backend(const EngineParts& parts, const Station& station,
                                      const RankDevice* device) {
  return device != nullptr ? make_device_backend(parts, station, *device)
                           : make_host_backend(parts, station);
}

std::unique_ptr<PlanRunner> make_runner(const EngineParts& p, Which which, RunnerOptions options) {
  const auto memory = [&p_memory = *p.state.memory, which](int b) { return p_memory.of(which, b); };
  return std::make_unique<PlanRunner>(p.training.model, p.training.shape, p.program(which), memory,
                                      p.gauges.accounts, std::move(options));
}

}  // namespace

Engine::Engine(const EngineParts& parts, const RankDevice* device)
    : p_(parts),
      station_(parts.training.model, parts.training.shape, parts.plans, parts.context.rank),
      backend_(make_backend(p_, station_, device)),
      options_(backend_->runner_options(Which::kSteps)),
      steps_(make_runner(p_, Which::kSteps, options_)),
      forward_(make_runner(p_, Which::kEvaluation, backend_->runner_options(Which::kEvaluation))),
      outputs_(p_.training.model, station_, backend_->move_output()) {
  backend_->start(
      [this](Which which, const Instruction& i, const Turn& turn) { compute(which, i, turn); });
}

Engine::~Engine() = default;

StepVerdict Backend::finish(const StepRequest&, const Decision&) {
  throw Error("a step that was cut in its middle cannot be finished on a device yet");
}

void Engine::compute(Which which, const Instruction& i, const Turn& turn) {
  if (which == Which::kEvaluation) return evaluate(i);
  const Pass pass = backend_->pass_of(p_.training.job.train.seed, step_, i.lane, i.micro);
  const auto data = backend_->data(which, i);
  if (i.op == Op::kForward) {
    steps_->forward(i, pass, data);
    if (station_.counts_loss(i)) backend_->count_loss(i, steps_->output(i, "loss"), turn);
  } else {
    steps_->backward(i, pass, data);
  }
  if (searching_) look_at(i);
}

void Engine::evaluate(const Instruction& forward) {
  forward_->forward(forward, forward_pass_, backend_->data(Which::kEvaluation, forward));
  const int column = p_.training.shape.blocks[forward.block].column;
  outputs_.add(column, forward_->output(forward, p_.training.model.output));
  if (station_.is_end(forward) && column == 0) forward_end_ = &forward;
}

/// Whether what an instruction left is finite is asked of a device here and answered after the
/// step.
void Engine::look_at(const Instruction& i) {
  const bool backward = i.op == Op::kBackward;
  if (backward && i.segment > 0) return;  // a block's gradient is whole after its first segment's
  const at::Tensor finite = backward ? steps_->finite_gradients(i) : steps_->finite(i);
  if (finite.defined()) looked_.push_back({{i.lane, i.micro, i.block, backward ? 1 : 0}, finite});
}

RunnerOptions Engine::options() const {
  RunnerOptions options = options_;
  if (!options.low_memory) return options;
  options.low.assign(p_.training.shape.blocks.size(), nullptr);
  const auto& buffers = p_.program().buffers;
  for (size_t b = 0; b < buffers.size(); ++b)
    if (buffers[b].kind == BufferKind::kParameter && buffers[b].unit >= 0 &&
        buffers[b].placed.empty())
      options.low[buffers[b].unit] = options.low_memory(static_cast<int>(b));
  return options;
}

StepVerdict Engine::run(const StepRequest& request) {
  step_ = request.step;
  return backend_->run(request);
}

NonFinitePlace Engine::search(const StepRequest& request, Loader& loader) {
  searching_ = true;
  backend_->rehearse();
  looked_.clear();
  backend_->repeat(request, loader);
  searching_ = false;
  NonFinitePlace first;
  for (const Looked& looked : std::exchange(looked_, {}))
    if (!looked.finite.item<bool>() && (first.lane < 0 || computed_before(looked.place, first)))
      first = looked.place;
  return first;
}

std::optional<Evaluated> Engine::forward(const Pass& pass, const std::vector<at::Tensor>& data) {
  forward_pass_ = pass;
  outputs_.clear();
  backend_->evaluate(data);
  Evaluated evaluated;
  if (p_.training.model.task != Task::kLoss && station_.ends()) evaluated.output = outputs_.whole();
  if (!station_.reports() || !station_.owns(pass.lane)) return std::nullopt;
  evaluated.data = backend_->evaluated();
  evaluated.loss = forward_->loss(*forward_end_);
  return evaluated;
}

}  // namespace tutti
