// One host thread puts a step on the device's streams and waits for its end (engine/device/steps.h); nothing else in a
// steady step waits. Here is what each instruction of a data-parallel plan means there.
#include "engine/device/ddp.h"

#include <exception>
#include <optional>

#include "base/error.h"
#include "device/reduction.h"
#include "engine/channels.h"
#include "engine/device/commit.h"
#include "engine/device/feed.h"
#include "engine/device/steps.h"
#include "exec/stream_executor.h"
#include "model/adaptor.h"

namespace tutti {

namespace {

class DeviceEngine final : public Engine, public WholePlacement {
 public:
  DeviceEngine(const EngineParts& parts, const RankDevice& rank);
  ~DeviceEngine() override;

  StepVerdict run(const StepRequest& request) override;
  Placement& placement() override { return *this; }
  uint64_t order_digest() const override { return feed_->digest(); }
  std::function<void()> copy_out() override {
    return steps_->copy_out(static_cast<uint64_t>(step_), [this](Stream stream) { p_.units.copy_out(stream); });
  }
  double traced_seconds() const override { return steps_->traced_seconds(); }

  ModelRunner* runner() override { return runner_.get(); }
  void settle(const char* operation) override { steps_->settle(operation, static_cast<uint64_t>(step_)); }
  std::vector<at::Tensor> placed(const std::vector<at::Tensor>& data) override;
  /// `step` is for torch's generator alone, from which no captured step draws.
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.batch, 0, lane, micro), 0, true, &commit_.inputs()->keys};
  }
  RunnerOptions options() const override { return {place_, &device_, low_, compute_type(p_.job), nullptr}; }

 private:
  void join(const DeviceLibrary& library);
  void place_gradients();
  void make_reductions();
  void make_tables();
  void make_runner();
  StreamHandlers handlers();
  void update(const Instruction& i, Stream stream);

  const EngineParts p_;
  const StateKernels& state_;
  Device& device_;
  const at::Device place_;
  const Precision precision_;
  const Duration timeout_;
  const Stream compute_;
  std::vector<Stream> streams_;  // by queue
  DeviceArrays arrays_;
  DeviceCommit commit_;
  std::unique_ptr<DeviceGroup> group_;  // null: one rank
  std::unique_ptr<DeviceSteps> steps_;

  float* partials_ = nullptr;
  std::optional<GradientMemory> gradients_;
  std::vector<std::unique_ptr<DeviceReduction>> reductions_;
  std::vector<void*> low_;  // by unit

  std::vector<ChunkList> squares_;        // by bucket, of my slice
  std::vector<UpdateArguments> updates_;  // by unit
  uint32_t first_update_ = 0;             // id of the instruction

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<DeviceFeed> feed_;
  std::unique_ptr<StreamExecutor> executor_;
  int64_t step_ = 0;
};

DeviceEngine::DeviceEngine(const EngineParts& parts, const RankDevice& rank)
    : WholePlacement(parts.model, parts.lanes),
      p_(parts),
      state_(rank.library->state),
      device_(*rank.device),
      place_(rank.place()),
      precision_(precision_of(parts.job.numerics)),
      timeout_(timeout_of(parts.job)),
      compute_(rank.compute),
      arrays_(device_, compute_, parts.accounts),
      commit_({parts.job, parts.shape, parts.updater, parts.context, parts.accounts, device_, state_, compute_}) {
  streams_.push_back(compute_);
  for (size_t q = 1; q < p_.program().queues.size(); ++q) streams_.push_back(device_.make_stream());
  device_.make_current(compute_);
  join(*rank.library);
  const bool captures = p_.job.layout.graph && device_.captures() && capture_faults(p_.model).empty();
  std::vector<DeviceGroup*> groups;
  if (group_) groups.push_back(group_.get());
  steps_ = std::make_unique<DeviceSteps>(
      DeviceSteps::Parts{device_, compute_, p_.context, timeout_, p_.trace, captures, std::move(groups)});
  place_gradients();
  make_reductions();
  make_tables();
  make_runner();
  feed_ =
      std::make_unique<DeviceFeed>(p_.model, lane_by_lane(p_.lanes, p_.batch), p_.loader, device_, place_, p_.accounts);
  executor_ = std::make_unique<StreamExecutor>(p_.program(), handlers(), device_, streams_);
  device_.synchronise(compute_);
}

// An exception may have left work on the streams that waits for peers: giving memory back would wait with it, and the
// rank would never say what happened.
DeviceEngine::~DeviceEngine() {
  if (std::uncaught_exceptions() > 0 && steps_) steps_->let_go();
}

void DeviceEngine::join(const DeviceLibrary& library) {
  if (p_.context.size == 1) return;
  GroupOptions options;
  options.rank = p_.context.rank;
  options.size = p_.context.size;
  options.host = host_of(options.rank, options.size, static_cast<int>(p_.job.layout.hosts));
  for (int r = 0; r < options.size; ++r) options.shares |= ranks_on_device(p_.job, r, library.count()) > 1;
  const Deadline deadline = p_.context.clock.after(timeout_);
  const std::string mine = options.rank == 0 ? library.group_id(options.shares) : "";
  options.id = p_.context.rendezvous.exchange({.bytes = mine}, deadline)[0].bytes;
  group_ = library.join(device_, options, p_.context.clock, deadline, &p_.context.control.cancel);
}

void DeviceEngine::place_gradients() {
  partials_ =
      arrays_.take<float>(BufferKind::kGradient, partials_of(p_.context.rank, p_.plan) * p_.places.partial_floats);
  gradients_.emplace(p_.program(), p_.places, partials_, p_.accounts, &device_);
}

void DeviceEngine::make_reductions() {
  for (size_t b = 0; b < p_.plan.buckets.size(); ++b) {
    const ReductionSpec spec = reduction_spec(p_.plan, p_.shape, p_.places, static_cast<int>(b), p_.job);
    reductions_.push_back(std::make_unique<DeviceReduction>(spec, partials_, device_, group_.get(), state_));
    p_.accounts.add(BufferKind::kMessage, reductions_.back()->scratch_bytes());
  }
}

/// Brings what the kernels look up to the device.
void DeviceEngine::make_tables() {
  for (size_t u = 0; u < p_.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    UpdateArguments& update = updates_.emplace_back(commit_.update_of(unit, {0, p_.shape.blocks[u].unit_size}));
    if (update.chunk_count == 0) continue;
    update.parameters = p_.units.parameters(unit);
    update.gradients = partials_ + p_.places.of_unit(unit);
    const auto slots = p_.units.slots(unit, 0);
    for (size_t k = 0; k < slots.size(); ++k) update.slots[k] = slots[k];
  }
  for (size_t b = 0; b < p_.plan.buckets.size(); ++b) {
    const ReductionSpec spec = reduction_spec(p_.plan, p_.shape, p_.places, static_cast<int>(b), p_.job);
    squares_.push_back(
        commit_.on_device(counted_in(commit_.tables(), p_.plan.buckets[b], spec.slices[p_.context.rank])));
  }
  for (const Queue& queue : p_.program().queues)
    for (const Instruction& i : queue.instructions)
      if (i.op == Op::kUpdate && first_update_ == 0) first_update_ = i.id;
}

void DeviceEngine::make_runner() {
  std::vector<float*> parameters;
  RunnerOptions options;
  options.device = place_;
  options.memory = &device_;
  options.precision = compute_type(p_.job);
  options.loss_scale = commit_.inputs()->loss_scale;
  options.consume = true;
  for (size_t u = 0; u < p_.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    parameters.push_back(p_.units.parameters(unit));
    if (precision_ == Precision::kFloat32) continue;
    const int64_t size = p_.shape.blocks[u].unit_size;
    low_.push_back(arrays_.take<uint16_t>(BufferKind::kParameter, size));
    updates_[u].low = low_.back();
    if (size > 0) state_.cast(compute_, parameters.back(), low_.back(), size, precision_);
  }
  options.low = low_;
  runner_ = std::make_unique<ModelRunner>(p_.model, p_.shape, parameters, p_.accounts, std::move(options));
}

StreamHandlers DeviceEngine::handlers() {
  StreamHandlers on;
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [](const Instruction&, Stream) {});  // the feed put all of the step's in their place
  set(Op::kForward, [this](const Instruction& i, Stream stream) {
    const Pass pass = pass_of(p_.job.train.seed, step_, i.lane, i.micro);
    runner_->forward(i.block, i.segment, pass, feed_->tensors(i.lane, i.micro));
    if (!is_last(p_.model, i)) return;
    commit_.count_loss(stream, i.lane, i.micro, static_cast<const double*>(runner_->loss_border().const_data_ptr()));
  });
  set(Op::kBackward, [this](const Instruction& i, Stream) {
    const Pass pass = pass_of(p_.job.train.seed, step_, i.lane, i.micro);
    runner_->backward(i.block, i.segment, pass, feed_->tensors(i.lane, i.micro), gradients_->of_backward(i));
  });
  set(Op::kFold, [this](const Instruction& i, Stream stream) {
    for (const Add& add : i.adds)
      state_.add_into(stream, gradients_->of(add.into, i.block), gradients_->of(add.from, i.block),
                      p_.shape.blocks[i.block].gradient_size);
  });
  set(Op::kAcquire, [](const Instruction&, Stream) {});  // the step before has ended on all streams
  set(Op::kReduce, [this](const Instruction& i, Stream stream) { reductions_[i.bucket]->reduce(stream); });
  set(Op::kNorm, [this](const Instruction& i, Stream stream) {
    commit_.count_squares(stream, reductions_[i.bucket]->result(), squares_[i.bucket]);
  });
  set(Op::kGather, [this](const Instruction& i, Stream stream) { reductions_[i.bucket]->gather(stream); });
  set(Op::kVote, [this](const Instruction&, Stream stream) { commit_.decide(stream, group_.get()); });
  set(Op::kUpdate, [this](const Instruction& i, Stream stream) { update(i, stream); });
  return on;
}

/// State that is being copied out is not written before it has left.
void DeviceEngine::update(const Instruction& i, Stream stream) {
  if (i.id == first_update_) steps_->await_copies(stream);
  state_.update(stream, updates_[i.block]);
}

StepVerdict DeviceEngine::run(const StepRequest& request) {
  step_ = request.step;
  commit_.begin(request);
  feed_->use(step_, compute_);
  steps_->launch(*executor_, [this](Stream first) { commit_.clear(first); });
  commit_.end();
  steps_->mark();
  if (p_.job.layout.prefetch) feed_->place(step_ + 1, compute_);
  steps_->finish(*executor_, static_cast<uint64_t>(step_));
  return commit_.verdict(request);
}

std::vector<at::Tensor> DeviceEngine::placed(const std::vector<at::Tensor>& data) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : data) tensors.push_back(tensor.to(place_));
  return tensors;
}

}  // namespace

std::unique_ptr<Engine> make_device_engine(const EngineParts& parts, const RankDevice& device) {
  return std::make_unique<DeviceEngine>(parts, device);
}

}  // namespace tutti
