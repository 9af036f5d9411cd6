// Each handler below says what an instruction means on the host's cores. Where things are is said
// by the program, what travels by the plan's transfers (engine/host/host_travel.h); nothing is
// decided here.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "comm/fold.h"
#include "comm/lending.h"
#include "config/timeout.h"
#include "engine/backend.h"
#include "engine/data_slots.h"
#include "engine/host/host_commit.h"
#include "engine/host/host_travel.h"
#include "plan/ir/tags.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

/// A program of the rank and what its instructions run with.
struct Side {
  Side(const EngineParts& parts, const Station& station, Which which);
  /// The micro-batch is copied into its slot, or, where only one is in work at a time, used where
  /// it is.
  void load(const Instruction& i, const std::vector<at::Tensor>& batch);
  /// Throws what the roll call has found where it explains why others were lost.
  void run(Executor& executor, uint64_t run) const;

  const Which which;
  const Program& program;
  HostTravel travel;
  DataSlots data;
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

class HostBackend final : public Backend {
 public:
  HostBackend(const EngineParts& parts, const Station& station);

  RunnerOptions runner_options(Which) override { return {}; }
  void start(Compute compute) override;
  std::span<const at::Tensor> data(Which which, const Instruction& i) const override {
    return (which == Which::kSteps ? steps_ : forward_).data.read_by(i);
  }
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.plans.steps.batch, step, lane, micro)};
  }
  void count_loss(const Instruction&, const at::Tensor& loss, const Turn&) override {
    commit_.count_loss({loss.const_data_ptr<double>()[0], loss.const_data_ptr<double>()[1]});
  }
  StepVerdict run(const StepRequest& request) override;
  Decision decided() const override { return commit_.decided(); }
  StepVerdict finish(const StepRequest& request, const Decision& decision) override;
  void repeat(const StepRequest& request, Loader& loader) override;
  void evaluate(const std::vector<at::Tensor>& batch) override;
  std::vector<at::Tensor> evaluated() const override { return *batch_; }
  MoveOutput move_output() override { return move_by_transport(p_, station_); }
  uint64_t order_digest() const override { return order_digest_; }

 private:
  std::unique_ptr<Executor> make_executor(Which which);
  Handlers handlers(Side& side);
  Handlers step_handlers();
  void find_chunks();
  void fold(const Instruction& i);
  void norm(const Instruction& i);
  void update(const Instruction& i);
  const float* gradient(const Operand& operand) const;
  Deadline deadline() const { return p_.context.clock.after(timeout_of(p_.training.job)); }

  const EngineParts& p_;
  const Station& station_;
  Channel channel_;
  HostCommit commit_;
  Side steps_, forward_;
  Lending lending_;
  Compute compute_;
  std::unique_ptr<Executor> step_executor_, forward_executor_;
  // by unit, of what I own of its sum; those that count in norms
  std::vector<std::vector<Range>> chunks_;
  Loader* loader_;
  int64_t step_ = 0;
  uint64_t runs_ = 0;  // steps run so far
  bool repeating_ = false;
  uint64_t order_digest_ = 0;                       // of the steps that were committed
  const std::vector<at::Tensor>* batch_ = nullptr;  // of an evaluation
};

Side::Side(const EngineParts& parts, const Station& station, Which which)
    : which(which),
      program(parts.program(which)),
      travel(parts, station, which),
      data(
          parts.training.model, program,
          [&memory = *parts.state.memory, which](int b) { return memory.of(which, b); }, at::kCPU) {
}

void Side::load(const Instruction& i, const std::vector<at::Tensor>& batch) {
  // Either the segments read the loader's memory itself, or the program has a buffer for its
  // values.
  const auto& tensors = data.filled_by(i);
  if (tensors.empty()) return data.lend(i, batch);
  for (size_t d = 0; d < batch.size(); ++d)
    std::memcpy(tensors[d].data_ptr(), batch[d].const_data_ptr(),
                static_cast<size_t>(batch[d].nbytes()));
}

void Side::run(Executor& executor, uint64_t run) const {
  try {
    executor.run(run);
  } catch (const CommError&) {
    travel.rethrow();
    throw;
  }
}

HostBackend::HostBackend(const EngineParts& parts, const Station& station)
    : p_(parts),
      station_(station),
      channel_(parts.transport, parts.context.clock, kDataChannel, timeout_of(parts.training.job)),
      commit_(parts.training.job.train, parts.context, channel_, parts.saving,
              parts.training.shape.blocks.size()),
      steps_(p_, station_, Which::kSteps),
      forward_(p_, station_, Which::kEvaluation),
      lending_(p_.plans.steps, p_.context.rank, p_.transport),
      loader_(&p_.loader) {
  find_chunks();
}

void HostBackend::start(Compute compute) {
  compute_ = std::move(compute);
  step_executor_ = make_executor(Which::kSteps);
  forward_executor_ = make_executor(Which::kEvaluation);
  // Copies of shared parameters are refreshed after every Update; the first ones are made here.
  steps_.travel.refresh();
}

std::unique_ptr<Executor> HostBackend::make_executor(Which which) {
  Side& side = which == Which::kSteps ? steps_ : forward_;
  Handlers on = which == Which::kSteps ? step_handlers() : handlers(side);
  Trace* trace = which == Which::kSteps && !repeating_ ? &p_.gauges.trace : nullptr;
  return std::make_unique<Executor>(side.program, std::move(on), p_.context.clock,
                                    &p_.context.control.cancel, trace,
                                    [] { prepare_compute_thread(1); });
}

void HostBackend::find_chunks() {
  chunks_.resize(p_.training.shape.blocks.size());
  for (size_t u = 0; u < p_.training.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);

    // Slices are cut on chunk borders, so a chunk is counted by the one rank that owns its first
    // float.
    const Range owned = range_of(p_.plans.steps.ownership[u].sums, p_.context.rank);
    const auto& parameters = p_.training.shape.blocks[u].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!p_.training.updater.counts(unit, i)) continue;
      for (const Range& chunk :
           chunks_of({{parameters[i].offset, parameters[i].offset + parameters[i].size}}))
        if (owned.contains(chunk.begin)) chunks_[u].push_back(chunk);
    }
  }
}

/// The handlers of one side, which serve the program of steps or that of evaluation.
Handlers HostBackend::handlers(Side& side) {
  Handlers on;
  const auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this, &side](const Instruction& i, uint64_t) {
    side.load(i, side.which == Which::kSteps ? loader_->next(step_, i.lane, i.micro) : *batch_);
  });
  for (Op op : {Op::kForward, Op::kBackward})
    set(op, [this, &side](const Instruction& i, uint64_t run) { compute_(side.which, i, {run}); });
  side.travel.set(on);
  return on;
}

Handlers HostBackend::step_handlers() {
  Handlers on = handlers(steps_);
  const auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kVote, [this](const Instruction& i, uint64_t) { commit_.vote(steps_.travel.meet(i)); });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t) { update(i); });
  // Nobody has borrowed anything of a step that is repeated, since it was not committed.
  set(Op::kAcquire, [this](const Instruction& i, uint64_t run) {
    if (!repeating_) lending_.acquire(i.parcel, run, deadline());
  });
  set(Op::kRelease,
      [this](const Instruction& i, uint64_t run) { lending_.release(i.parcel, run); });
  return on;
}

StepVerdict HostBackend::run(const StepRequest& request) {
  step_ = request.step;
  // The loader begins here and not at the first Load: a rank that idles comes to that after
  // meetings in which the others wait for it.
  loader_->begin(step_);
  steps_.travel.begin(step_);
  forward_.travel.begin(step_);
  const StepVerdict verdict =
      commit_.run(request, [this] { steps_.run(*step_executor_, runs_++); });
  order_digest_ = p_.loader.digest();
  return verdict;
}

/// Walks what the executor has left, queue by queue, as far as events allow, on this thread alone.
/// A rank votes when all that others need of it is done, so if anybody knows the decision, nothing
/// that computes or sums is left here.
StepVerdict HostBackend::finish(const StepRequest& request, const Decision& decision) {
  const StepVerdict verdict = commit_.adopt(request, decision);
  const auto& queues = steps_.program.queues;
  std::vector<size_t> next = step_executor_->ended();
  std::set<int> signalled;
  for (size_t q = 0; q < queues.size(); ++q)
    for (size_t k = 0; k < next[q]; ++k) signalled.insert(queues[q].instructions[k].signal);

  const Handlers on = step_handlers();
  const auto perform = [&](const Instruction& i) {
    switch (i.op) {
      case Op::kUpdate:
      case Op::kFetch:
      case Op::kEvict:
        return on[static_cast<int>(i.op)](i, runs_);
      // What meets other ranks: they are lost, and what this would have brought is handed over.
      case Op::kVote:
      case Op::kGather:
      case Op::kAcquire:
      case Op::kRelease:
        return;
      default:
        TUTTI_CHECK(false, "{} is left of a step that was decided", to_string(i));
    }
  };

  // Queues are walked in turns until none can go on: an event that one waits for may be signalled
  // by a later one.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t q = 0; q < queues.size(); ++q) {
      const auto may_run = [&](const Instruction& i) {
        return std::all_of(i.waits.begin(), i.waits.end(),
                           [&](int event) { return signalled.contains(event); });
      };
      for (; next[q] < queues[q].instructions.size(); ++next[q]) {
        const Instruction& i = queues[q].instructions[next[q]];
        if (!may_run(i)) break;
        perform(i);
        signalled.insert(i.signal);
        moved = true;
      }
    }
  }
  for (size_t q = 0; q < queues.size(); ++q)
    TUTTI_CHECK(next[q] == queues[q].instructions.size(), "queue {} of a step waits for ever",
                queues[q].name);
  order_digest_ = p_.loader.digest();
  return verdict;
}

void HostBackend::repeat(const StepRequest& request, Loader& loader) {
  repeating_ = true;
  loader_ = &loader;
  step_executor_ = make_executor(Which::kSteps);  // one that has failed runs no further step
  const StepVerdict verdict = run(request);
  TUTTI_CHECK(!verdict.finite, "a step that was not finite is, the second time");
}

void HostBackend::evaluate(const std::vector<at::Tensor>& batch) {
  batch_ = &batch;
  forward_.run(*forward_executor_, runs_);
}

void HostBackend::fold(const Instruction& i) {
  for (const Add& add : i.adds) {
    const Range range = steps_.program.buffers[add.into].range;
    add_into(p_.state.memory->floats(add.into), p_.state.memory->floats(add.from),
             range.empty() ? p_.training.shape.blocks[i.block].gradient_size : range.size());
  }
}

void HostBackend::norm(const Instruction& i) {
  for (const Operand* sum : operands_of(i, OperandRole::kSum)) {
    const float* values = p_.gradient(sum->buffer);
    for (const Range& chunk : chunks_[sum->unit])
      commit_.count_squares(sum->unit, values + chunk.begin, chunk.size());
  }
}

/// Where float 0 of the unit would be, in this rank's memory or in the window of the one it is
/// borrowed from.
const float* HostBackend::gradient(const Operand& operand) const {
  if (operand.rank < 0) return p_.gradient(operand.buffer);
  const Buffer& buffer = p_.plans.steps.programs[operand.rank].buffers[operand.buffer];
  return reinterpret_cast<const float*>(p_.transport.window_of(operand.rank).data() +
                                        buffer.window_offset) -
         buffer.range.begin;
}

/// What this rank updates of the unit, piece by piece: gradients are read where their owners left
/// them.
void HostBackend::update(const Instruction& i) {
  const int unit = i.block;
  const StepScalars scalars = commit_.scalars(unit);

  // The values that change: this rank's range of the parameters and of each slot.
  const auto& parameters = p_.training.shape.blocks[unit].parameters;
  const Held& held = p_.state.units->held(unit);
  const UpdatedUnit units(
      p_.state.memory->floats(buffer_of(i, OperandRole::kParameter)) - held.parameters.begin,
      p_.state.memory->floats(buffer_of(i, OperandRole::kMoment)), held.moments,
      p_.plans.steps.optimizer_slots);

  // Parameter by parameter, since rates and decays differ. Its gradient may have several owners, so
  // it is a list of pieces; one without a piece here is another rank's to update.
  const int64_t proposals =
      int64_t{p_.plans.steps.batch.lanes} * p_.plans.steps.batch.micro_batches;
  const auto gradients = operands_of(i, OperandRole::kGradient);
  std::vector<GradientPiece> pieces;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Range updated =
        overlap(held.moments, {parameters[p].offset, parameters[p].offset + parameters[p].size});
    pieces.clear();
    for (const Operand* operand : gradients) {
      const Range part = overlap(updated, operand->range);
      if (!part.empty())
        pieces.push_back({part.begin, part.size(), gradient(*operand) + part.begin});
    }
    if (!pieces.empty()) p_.training.updater.update(units, unit, p, pieces, scalars, proposals);
  }
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(const EngineParts& parts, const Station& station) {
  return std::make_unique<HostBackend>(parts, station);
}

}  // namespace tutti
