// Read aloud like host_engine.cc: each handler says what an instruction means on the host. Where things lie is said by
// the program, what travels by plan/make/transfers.h (MeshTravel); nothing is decided here.
#include "engine/host/mesh.h"

#include <cstring>

#include "base/error.h"
#include "comm/fold.h"
#include "engine/channels.h"
#include "engine/data_slots.h"
#include "engine/host/commit.h"
#include "engine/output.h"
#include "model/plan_runner.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

/// One of the two programs of a rank, of steps or of evaluation, and what its instructions run with.
struct Side {
  Side(const MeshParts& parts, const MeshPlace& place, bool forward_only);
  void load(const Instruction& i, const std::vector<at::Tensor>& batch);
  /// Throws what the roll call has found where it explains why others were lost.
  void run(uint64_t round);

  const Program& program;
  const std::function<std::byte*(int)> memory;
  PlanRunner runner;
  MeshTravel travel;
  DataSlots data;
  std::unique_ptr<Executor> executor = nullptr;
};

/// A unit's values where an Update finds them: resident or fetched.
class UpdatedUnit final : public UnitValues {
 public:
  UpdatedUnit(float* parameters, float* moments, Range held, int slots)
      : parameters_(parameters), moments_(moments), held_(held), slots_(slots) {}
  float* parameters(int, int64_t offset) const override { return parameters_ + offset; }
  std::vector<float*> slots(int, int64_t offset) const override {
    std::vector<float*> all;
    for (int k = 0; k < slots_; ++k)
      all.push_back(moments_ + k * align_up(held_.size(), kAlign) + (offset - held_.begin));
    return all;
  }

 private:
  float *parameters_, *moments_;  // of the unit's first float; of the first one held
  Range held_;
  int slots_;
};

class MeshEngine final : public Engine, public Placement {
 public:
  explicit MeshEngine(const MeshParts& parts);

  StepVerdict run(const StepRequest& request) override;
  Placement& placement() override { return *this; }
  uint64_t order_digest() const override { return place_.reports() ? p_.loader.digest() : 0; }

  bool computes(int lane) const override { return place_.computes(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override;
  int64_t output_width() override { return place_.output_width(); }
  void watch(int* block) override { watched_ = block; }
  ModelRunner* runner() override { return nullptr; }
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.options.batch, step, lane, micro)};
  }

 private:
  void find_chunks();
  Handlers handlers();
  Handlers forward_handlers();
  Pass pass_of(const Instruction& i) const { return pass_of(p_.job.train.seed, step_, i.lane, i.micro); }
  void fold(const Instruction& i);
  void norm(const Instruction& i);
  void update(const Instruction& i);

  const MeshParts p_;
  const MeshPlace place_;
  Channel channel_;
  HostCommit commit_;
  Side steps_, forward_;
  OutputParts outputs_;
  std::vector<std::vector<Range>> chunks_;  // by unit, of my slice; those that count in norms

  int64_t step_ = 0;
  uint64_t round_ = 0;  // steps run so far
  Pass forward_pass_;
  const std::vector<at::Tensor>* forward_batch_ = nullptr;
  int* watched_ = nullptr;
  Evaluated evaluated_;
};

Side::Side(const MeshParts& parts, const MeshPlace& place, bool forward_only)
    : program((forward_only ? parts.forward_plan : parts.plan).programs[parts.context.rank]),
      memory([from = &parts.memory, forward_only](int b) { return forward_only ? from->of_forward(b) : from->of(b); }),
      runner(parts.model, parts.shape, program, memory, parts.accounts),
      travel(parts, place, forward_only),
      data(parts.model, program, memory, at::kCPU) {}

void Side::load(const Instruction& i, const std::vector<at::Tensor>& batch) {
  const auto& tensors = data.filled_by(i);
  for (size_t d = 0; d < batch.size(); ++d)
    std::memcpy(tensors[d].data_ptr(), batch[d].const_data_ptr(), static_cast<size_t>(batch[d].nbytes()));
}

void Side::run(uint64_t round) {
  try {
    executor->run(round);
  } catch (const CommError&) {
    travel.rethrow();
    throw;
  }
}

MeshEngine::MeshEngine(const MeshParts& parts)
    : p_(parts),
      place_(parts.model, parts.shape, parts.options, parts.context.rank),
      channel_(parts.transport, parts.context.clock, kDataChannel, timeout_of(parts.job)),
      commit_(parts.job.train, parts.context, channel_, parts.shape.blocks.size()),
      steps_(p_, place_, false),
      forward_(p_, place_, true),
      outputs_(p_.model, place_, move_by_transport(p_, place_)) {
  find_chunks();
  const int threads = static_cast<int>(p_.job.numerics.threads);
  const auto start = [threads] { prepare_compute_thread(threads); };
  Clock& clock = p_.context.clock;
  const Cancel* cancel = &p_.context.control.cancel;
  steps_.executor = std::make_unique<Executor>(steps_.program, handlers(), clock, cancel, &p_.trace, start);
  forward_.executor = std::make_unique<Executor>(forward_.program, forward_handlers(), clock, cancel, nullptr, start);
  // Copies of shared parameters are refreshed behind every Update; the first ones are made here.
  steps_.travel.refresh();
}

void MeshEngine::find_chunks() {
  chunks_.resize(p_.shape.blocks.size());
  for (size_t u = 0; u < p_.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (!place_.is_home(unit)) continue;
    const Range owned = place_.owned(unit);
    const auto& parameters = p_.shape.blocks[u].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!p_.updater.counts(unit, i)) continue;
      for (const Range& chunk : chunks_of({{parameters[i].offset, parameters[i].offset + parameters[i].size}}))
        if (owned.contains(chunk.begin)) chunks_[u].push_back(chunk);
    }
  }
}

Handlers MeshEngine::handlers() {
  Handlers on;
  const auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { steps_.load(i, p_.loader.next(step_, i.lane, i.micro)); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    steps_.runner.forward(i, pass_of(i), steps_.data.read_by(i));
    if (place_.counts_loss(i)) commit_.count_loss(steps_.runner.loss(i));
  });
  set(Op::kBackward,
      [this](const Instruction& i, uint64_t) { steps_.runner.backward(i, pass_of(i), steps_.data.read_by(i)); });
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kVote, [this](const Instruction& i, uint64_t) {
    steps_.travel.meet(i);
    commit_.vote();
  });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t) { update(i); });
  steps_.travel.set(on);
  return on;
}

Handlers MeshEngine::forward_handlers() {
  Handlers on;
  const auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { forward_.load(i, *forward_batch_); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    forward_.runner.forward(i, forward_pass_, forward_.data.read_by(i));
    const int column = p_.shape.blocks[i.block].column;
    outputs_.add(column, forward_.runner.output(i, p_.model.output));
    if (place_.is_end(i) && column == 0) evaluated_.loss = forward_.runner.loss(i);
    if (watched_ == nullptr || *watched_ >= 0) return;
    const at::Tensor finite = forward_.runner.finite(i);
    if (finite.defined() && !finite.item<bool>()) *watched_ = i.block;
  });
  forward_.travel.set(on);
  return on;
}

StepVerdict MeshEngine::run(const StepRequest& request) {
  step_ = request.step;
  steps_.travel.begin(step_);
  forward_.travel.begin(step_);
  return commit_.run(request, [this] { steps_.run(round_++); });
}

void MeshEngine::fold(const Instruction& i) {
  for (const Add& add : i.adds) {
    const Range range = p_.program().buffers[add.into].range;
    add_into(p_.memory.floats(add.into), p_.memory.floats(add.from),
             range.empty() ? p_.shape.blocks[i.block].gradient_size : range.size());
  }
}

void MeshEngine::norm(const Instruction& i) {
  const float* values = p_.gradient(i.reads[0]);
  for (const Range& chunk : chunks_[i.block]) commit_.count_squares(i.block, values + chunk.begin, chunk.size());
}

/// What this rank owns of the unit.
void MeshEngine::update(const Instruction& i) {
  const int unit = i.block;
  const float* values = p_.gradient(i.reads[1]);
  const StepScalars scalars = commit_.scalars(unit);
  const auto& parameters = p_.shape.blocks[unit].parameters;
  const Held& held = p_.units.held(unit);
  const UpdatedUnit units(p_.memory.floats(i.reads[2]) - held.parameters.begin, p_.memory.floats(i.reads[3]),
                          held.moments, p_.options.optimizer_slots);
  const int64_t proposals = int64_t{p_.options.batch.lanes} * p_.options.batch.micro_batches;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Range part = overlap(held.moments, {parameters[p].offset, parameters[p].offset + parameters[p].size});
    if (part.empty()) continue;
    const GradientPiece piece{part.begin, part.size(), values + part.begin};
    p_.updater.update(units, unit, p, std::span(&piece, 1), scalars, proposals);
  }
}

std::optional<Evaluated> MeshEngine::forward(const Pass& pass, const std::vector<at::Tensor>& data) {
  forward_pass_ = pass;
  forward_batch_ = &data;
  evaluated_ = {};
  evaluated_.data = data;
  outputs_.clear();
  forward_.run(round_);
  if (p_.model.task != Task::kLoss && place_.ends()) evaluated_.output = outputs_.whole();
  if (!place_.reports() || !place_.owns(pass.lane)) return std::nullopt;
  return evaluated_;
}

}  // namespace

std::unique_ptr<Engine> make_mesh_engine(const MeshParts& parts) { return std::make_unique<MeshEngine>(parts); }

}  // namespace tutti
