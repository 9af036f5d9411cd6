// A model outside of a job's steps, run as the plan of one rank. So there is no second way to run a
// model: what tests and samplers see here is what training runs.
#include "model/core/runner.h"

#include "base/error.h"
#include "model/core/plan_runner.h"
#include "plan/make/plan_mesh.h"

namespace tutti {

namespace {

/// The plan of one rank with one lane and one micro-batch.
Plan plan_of(ModelShape shape, const RunnerOptions& options) {
  if (!options.consume)
    for (BlockShape& block : shape.blocks)
      for (SegmentShape& segment : block.segments)
        for (InputShape& input : segment.inputs) input.consumed = false;

  // Nothing is sent, summed or updated here: queues that overlap and optimizer slots would
  // be for nobody.
  MeshOptions layout;
  layout.overlap = false;
  layout.optimizer_slots = 0;
  layout.forward_only = !options.training;
  return plan_mesh(shape, layout);
}

}  // namespace

struct ModelRunner::Impl {
  Impl(const Model& model, const ModelShape& shape, std::span<float* const> values,
       Accounts& accounts, const RunnerOptions& options)
      : units(values.begin(), values.end()),
        plan(plan_of(shape, options)),
        places(program().buffers.size(), nullptr) {
    take_memory(model, accounts, options.memory);

    // The caller names copies by unit, PlanRunner asks by buffer.
    RunnerOptions own = options;
    if (!options.low.empty())
      own.low_memory = [this, low = options.low](int b) { return low[program().buffers[b].unit]; };
    runner = std::make_unique<PlanRunner>(
        model, shape, program(), [this](int b) { return memory(b); }, accounts, std::move(own));

    // All forwards run first, then all backwards, each list in the program's order.
    for (const Instruction& i : program().queues[0].instructions) {
      if (i.op == Op::kForward) forwards.push_back(&i);
      if (i.op == Op::kBackward) backwards.push_back(&i);
    }
  }

  const Program& program() const { return plan.programs[0]; }

  /// Takes memory for borders, saved values and work. Parameters and gradients are the caller's,
  /// and the data's tensors are read where they are.
  void take_memory(const Model& model, Accounts& accounts, MemorySource* source) {
    const std::vector<int64_t> bytes = declared_bytes(model, program());
    std::vector<int64_t> total(kBufferKinds, 0);
    const auto own = [&](size_t b) {
      const BufferKind kind = program().buffers[b].kind;
      return kind == BufferKind::kBorder || kind == BufferKind::kSaved || kind == BufferKind::kWork;
    };

    // One arena per kind, so that its size is known before anything is taken from it.
    for (size_t b = 0; b < bytes.size(); ++b)
      if (own(b)) total[static_cast<int>(program().buffers[b].kind)] += bytes[b];
    arenas.resize(kBufferKinds);
    for (size_t b = 0; b < bytes.size(); ++b) {
      const BufferKind kind = program().buffers[b].kind;
      auto& arena = arenas[static_cast<size_t>(kind)];
      if (!own(b) || bytes[b] == 0) continue;
      if (!arena)
        arena = std::make_unique<Arena>(kind, total[static_cast<int>(kind)], accounts, source);
      places[b] = arena->take(static_cast<size_t>(bytes[b])).data();
    }
  }

  std::byte* memory(int b) const {
    const Buffer& buffer = program().buffers[b];
    if (buffer.kind == BufferKind::kParameter)
      return reinterpret_cast<std::byte*>(units[buffer.unit]);
    if (buffer.kind == BufferKind::kGradient)
      return reinterpret_cast<std::byte*>(gradients[buffer.unit]);
    return places[b];
  }

  const std::vector<float*> units;
  const Plan plan;
  std::vector<std::unique_ptr<Arena>> arenas;  // by kind
  std::vector<std::byte*> places;              // by buffer
  std::span<float* const> gradients;
  std::unique_ptr<PlanRunner> runner;
  std::vector<const Instruction*> forwards, backwards;
};

ModelRunner::ModelRunner(const Model& model, const ModelShape& shape, std::span<float* const> units,
                         Accounts& accounts, const RunnerOptions& options)
    : impl_(std::make_unique<Impl>(model, shape, units, accounts, options)) {}

ModelRunner::~ModelRunner() = default;

void ModelRunner::forward_all(const Pass& pass, Tensors data) {
  for (const Instruction* i : impl_->forwards) impl_->runner->forward(*i, pass, data);
}

void ModelRunner::backward_all(const Pass& pass, Tensors data, std::span<float* const> gradients) {
  impl_->gradients = gradients;
  for (const Instruction* i : impl_->backwards) impl_->runner->backward(*i, pass, data);
}

Loss ModelRunner::loss() const { return impl_->runner->loss(*impl_->forwards.back()); }

at::Tensor ModelRunner::border(const std::string& name) const {
  for (size_t i = impl_->forwards.size(); i-- > 0;)
    if (at::Tensor found = impl_->runner->output(*impl_->forwards[i], name); found.defined())
      return found;
  throw Error(fmt::format("the model has no border {}", name));
}

}  // namespace tutti
