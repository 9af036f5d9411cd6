// Each handler says what an instruction means on a device. Where things are is said by the program,
// and what travels by the plan's transfers. Over which group it travels is decided by
// engine/device/device_groups.h; when a step is issued, captured and waited for by
// engine/device/device_steps.h.
//
// Most of this only puts work on streams, and returns before the device has done it. What waits for
// the device is settle() and finish() of DeviceSteps.
#include "engine/device/device_backend.h"

#include <exception>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/timeout.h"
#include "engine/data_slots.h"
#include "engine/device/device_commit.h"
#include "engine/device/device_feed.h"
#include "engine/device/device_steps.h"
#include "engine/device/device_travel.h"
#include "engine/device/device_updates.h"
#include "engine/device/kind.h"
#include "exec/stream_executor.h"
#include "model/adapt/adaptor.h"

namespace tutti {

namespace {

/// A program of the rank, and what its instructions run with.
struct Side {
  const Which which;
  const Program& program;
  DeviceTravel travel;
  DataSlots data;
  std::unique_ptr<StreamExecutor> executor = nullptr;
};

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(const EngineParts& parts, const Station& station, const RankDevice& rank);
  ~DeviceBackend() override;

  RunnerOptions runner_options(Which which) override;
  void start(Compute compute) override;
  std::span<const at::Tensor> data(Which which, const Instruction& i) const override;
  /// `step` is for torch's generator alone, from which no captured step draws; all other keys are
  /// read on the device, so that one captured step serves all steps.
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed,
            step,
            lane,
            micro,
            first_sample(p_.plans.steps.batch, 0, lane, micro),
            0,
            true,
            &commit_.inputs()->keys};
  }
  void count_loss(const Instruction& i, const at::Tensor& loss, const Turn& turn) override {
    commit_.count_loss(turn.stream, i.lane, i.micro,
                       static_cast<const double*>(loss.const_data_ptr()));
  }
  StepVerdict run(const StepRequest& request) override;
  void rehearse() override;
  void repeat(const StepRequest& request, Loader& loader) override;
  void evaluate(const std::vector<at::Tensor>& batch) override;
  std::vector<at::Tensor> evaluated() const override { return forward_.data.first(); }
  MoveOutput move_output() override { return move_on_stream(groups_.columns(), compute_); }
  uint64_t order_digest() const override { return feed_ ? feed_->digest() : 0; }
  double traced_seconds() const override { return steps_.traced_seconds(); }
  std::function<void()> copy_out() override {
    return steps_.copy_out(static_cast<uint64_t>(step_),
                           [this](Stream stream) { p_.state.units->copy_out(stream); });
  }

 private:
  std::vector<Stream> make_streams() const;
  bool may_capture() const;
  Side make_side(Which which);
  void greet();
  StreamHandlers handlers(Side& side);
  void add_step_handlers(StreamHandlers& on);
  void fold(const Instruction& i, Stream stream);
  bool waits_far(const Instruction& i, Stream stream) const;

  const EngineParts& p_;
  const Station& station_;
  const RankDevice& rank_;
  const StateKernels& state_;
  Device& device_;
  const at::Device on_;
  const Precision precision_;
  const Stream compute_;
  const std::vector<Stream> streams_;  // by queue; the first is compute
  DeviceArrays arrays_;
  DeviceCommit commit_;
  const LowCopies low_;
  const DeviceGroups groups_;
  DeviceSteps steps_;
  Side train_, forward_;
  DeviceUpdates updates_;
  Compute segments_;
  std::unique_ptr<DeviceFeed> feed_;  // null: no segment on this rank reads data
  int64_t step_ = 0;
  bool rehearsing_ = false;                         // what waits for other stages is left out
  const std::vector<at::Tensor>* batch_ = nullptr;  // that an evaluation runs on
};

DeviceBackend::DeviceBackend(const EngineParts& parts, const Station& station,
                             const RankDevice& rank)
    : p_(parts),
      station_(station),
      rank_(rank),
      state_(rank.library->state),
      device_(*rank.device),
      on_(rank.at_device()),
      precision_(parts.training.job.numerics.precision),
      compute_(rank.compute),
      streams_(make_streams()),
      arrays_(device_, compute_, parts.gauges.accounts),
      commit_(parts, rank),
      low_(parts, rank),
      groups_(parts, rank),
      steps_(parts, rank, may_capture(), groups_.all()),
      train_(make_side(Which::kSteps)),
      forward_(make_side(Which::kEvaluation)),
      updates_(parts, rank, low_, commit_) {
  device_.make_current(compute_);
}

// An exception may have left work on the streams that waits for peers. Giving memory back would
// wait with it, and the rank would never say what happened.
DeviceBackend::~DeviceBackend() {
  if (std::uncaught_exceptions() > 0) steps_.let_go();
}

std::vector<Stream> DeviceBackend::make_streams() const {
  std::vector<Stream> streams{compute_};
  while (streams.size() < p_.program().queues.size()) streams.push_back(device_.make_stream());
  return streams;
}

bool DeviceBackend::may_capture() const {
  return p_.training.job.layout.graph && device_.captures() &&
         capture_faults(p_.training.model, p_.training.job.layout).empty();
}

RunnerOptions DeviceBackend::runner_options(Which which) {
  RunnerOptions options;
  options.device = on_;
  options.memory = &device_;
  options.precision = compute_type(p_.training.job);
  options.loss_scale = commit_.inputs()->loss_scale;
  if (precision_ != Precision::kFloat32)
    options.low_memory = [this, which](int b) { return low_.of(p_.state.memory->of(which, b)); };
  return options;
}

Side DeviceBackend::make_side(Which which) {
  // The same parts for both programs; only memory and plan differ.
  const auto memory = [&memory = *p_.state.memory, which](int b) { return memory.of(which, b); };
  const Program& program = p_.program(which);
  return {which, program, DeviceTravel(p_, which, {station_, rank_, groups_, low_}, arrays_),
          DataSlots(p_.training.model, program, memory, on_)};
}

void DeviceBackend::start(Compute compute) {
  // Connections first: the first use of a group must not be in a step.
  segments_ = std::move(compute);
  greet();

  // Evaluation has no handlers for what ends a step: its program must not contain such
  // instructions.
  StreamHandlers on = handlers(train_);
  add_step_handlers(on);
  train_.executor =
      std::make_unique<StreamExecutor>(train_.program, std::move(on), device_, streams_);
  forward_.executor =
      std::make_unique<StreamExecutor>(forward_.program, handlers(forward_), device_, streams_);

  // The Loads of the program, in their order, are what the feed brings for each step.
  std::vector<MicroBatch> sequence;
  for (const Instruction& i : train_.program.queues[0].instructions)
    if (i.op == Op::kLoad) sequence.push_back({i.lane, i.micro});
  if (!sequence.empty())
    feed_ = std::make_unique<DeviceFeed>(p_.training.model, sequence, p_.loader, device_, on_,
                                         p_.gauges.accounts);

  // Everything that Updates keep up to date from step to step has to be right before the first one.
  low_.write_all(compute_);
  // Copies of shared parameters are refreshed after every Update; the first ones are made here.
  for (const Instruction* refresh : train_.travel.refreshes())
    train_.travel.put(*refresh, compute_);
  steps_.settle("first copies", 0);
  rehearse();
}

void DeviceBackend::greet() {
  if (p_.context.size == 1) return;
  groups_.greet(compute_, arrays_.take<std::byte>(BufferKind::kWork,
                                                  DeviceGroups::greeting_bytes(p_.context.size)));
  steps_.settle("greeting", 0);
}

/// Runs a step without the messages between stages, of which nothing is written. The first use of a
/// kernel may wait for the whole device: in a first step that would be a wait for messages that
/// peers send only after this rank's next ones. Ranks without stages meet in one order, so they
/// need no rehearsal.
void DeviceBackend::rehearse() {
  if (p_.plans.steps.mesh.pipeline == 1) return;
  rehearsing_ = true;
  StepRequest request;
  request.step = 0;
  commit_.begin(request);
  commit_.spoil(compute_);
  train_.executor->issue(compute_, false);
  steps_.settle("rehearsal", 0);
  rehearsing_ = false;
}

/// The handlers of instructions that both programs may have.
StreamHandlers DeviceBackend::handlers(Side& side) {
  StreamHandlers on;
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this, &side](const Instruction& i, Stream stream) {
    // The feed has put all micro-batches of the step into the input.
    if (side.which == Which::kSteps) return;
    const auto& tensors = side.data.filled_by(i);
    for (size_t d = 0; d < tensors.size(); ++d) {
      const at::Tensor& from = (*batch_)[d];
      device_.copy(stream, tensors[d].data_ptr(), from.const_data_ptr(), from.nbytes());
    }
  });

  // Segments are the engine's part, and what travels is a side's.
  for (Op op : {Op::kForward, Op::kBackward})
    set(op, [this, &side](const Instruction& i, Stream stream) {
      segments_(side.which, i, {0, stream});
    });
  for (Op op :
       {Op::kReduce, Op::kGather, Op::kExchange, Op::kSend, Op::kRecv, Op::kFetch, Op::kEvict})
    set(op, [this, &side](const Instruction& i, Stream stream) {
      if (!rehearsing_ || !waits_far(i, stream)) side.travel.put(i, stream);
    });
  return on;
}

/// Whether the instruction waits for ranks of other stages.
bool DeviceBackend::waits_far(const Instruction& i, Stream stream) const {
  if (i.op == Op::kSend || i.op == Op::kRecv) return true;
  for (size_t q = 0; q < streams_.size(); ++q)
    if (p_.program().queues[q].use == QueueUse::kShared && streams_[q].handle == stream.handle)
      return true;
  return false;
}

void DeviceBackend::add_step_handlers(StreamHandlers& on) {
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kFold, [this](const Instruction& i, Stream stream) { fold(i, stream); });
  set(Op::kNorm, [this](const Instruction& i, Stream stream) { updates_.put_norm(i, stream); });
  set(Op::kVote,
      [this](const Instruction&, Stream stream) { commit_.decide(stream, groups_.world()); });
  set(Op::kUpdate, [this](const Instruction& i, Stream stream) {
    // The values may still be leaving for a checkpoint: they are not written before they have left.
    if (updates_.is_first(i)) steps_.await_copies(stream);
    updates_.put_update(i, stream);
  });
}

/// A segment that reads no data gets none. Those of a step read where the feed puts its
/// micro-batches, which is always the same place.
std::span<const at::Tensor> DeviceBackend::data(Which which, const Instruction& i) const {
  const auto slot = (which == Which::kSteps ? train_ : forward_).data.read_by(i);
  return which == Which::kSteps && !slot.empty() ? feed_->tensors(i.lane, i.micro) : slot;
}

void DeviceBackend::fold(const Instruction& i, Stream stream) {
  // In the order of the plan: on one stream, so the additions run one after the other.
  for (const Add& add : i.adds) {
    const Range range = p_.program().buffers[add.into].range;
    state_.add_into(stream, p_.state.memory->floats(add.into), p_.state.memory->floats(add.from),
                    range.empty() ? p_.training.shape.blocks[i.block].gradient_size : range.size());
  }
}

StepVerdict DeviceBackend::run(const StepRequest& request) {
  step_ = request.step;
  commit_.begin(request);

  // All of this is put on streams: the inputs, the step, the copy of its outcome, and after that
  // the next step's input. Only finish() waits for the device.
  if (feed_) feed_->use(step_, compute_);
  steps_.launch(*train_.executor, [this](Stream first) { commit_.clear(first); });
  commit_.end();

  // What is put on the stream after the mark is not waited for.
  steps_.mark();
  if (feed_ && p_.training.job.layout.prefetch) feed_->fill_input(step_ + 1, compute_);
  steps_.finish(*train_.executor, static_cast<uint64_t>(step_));
  return commit_.verdict(request);
}

/// The feed still has the micro-batches of the step. Where layout.prefetch is on, those of the next
/// step have taken their place, so they are put there again.
void DeviceBackend::repeat(const StepRequest& request, Loader&) {
  if (feed_) feed_->fill_input(step_, compute_);
  commit_.begin(request);
  commit_.clear(compute_);
  train_.executor->issue(compute_, false);
  steps_.settle("repeated step", static_cast<uint64_t>(step_));
}

void DeviceBackend::evaluate(const std::vector<at::Tensor>& batch) {
  batch_ = &batch;
  forward_.executor->issue(compute_, false);
  // Another rank may still read the data that this one waits for.
  steps_.settle("evaluation", static_cast<uint64_t>(step_),
                p_.context.while_working(timeout_of(p_.training.job)));
}

}  // namespace

std::unique_ptr<Backend> make_device_backend(const EngineParts& parts, const Station& station,
                                             const RankDevice& device) {
  return std::make_unique<DeviceBackend>(parts, station, device);
}

// The branches of a captured step are put on queues that the device chooses. Ranks of one data axis
// meet in one order, which is safe. Where compute itself waits for other ranks, it could be queued
// after a meeting that they reach later.
std::vector<std::string> capture_faults(const Model& model, const LayoutConfig& layout) {
  std::vector<std::string> faults = capture_faults(model);
  if (layout.pipeline > 1)
    faults.push_back("stages of a pipeline wait for each other inside of a step");
  if (layout.tensor > 1) faults.push_back("tensor ranks wait for each other inside of a step");
  return faults;
}

}  // namespace tutti
