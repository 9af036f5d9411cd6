// One host thread puts a step on the device's streams and waits for its end; nothing else in a steady step waits.
//
//   inputs    StepInputs and the rules of all parameters: written by the host into pinned memory, copied before a step
//   votes     VoteLayout's doubles: squares of chunks, losses, counts; summed over ranks, judged by commit()
//   outcome   what commit() found; updates read it there, the host gets a copy behind the step
//
// Step 0 and 1 are issued instruction by instruction: libraries choose their kernels, the pool takes its size. Then the
// step is captured, on a stream of its own, so that what ATen holds for it lies apart from what later steps allocate.
// Every kTraceEvery-th step is still issued one by one, with its times taken: the same bits, as verify shows.
//
// The file is long because one object owns all of a step's memory and says what each instruction means there.
#include "train/device_engine.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.h"
#include "device/reduction.h"
#include "exec/stream_executor.h"
#include "model/adaptor.h"
#include "train/channels.h"
#include "train/device_feed.h"
#include "train/device_tables.h"

namespace tutti {

namespace {

constexpr int kWarmSteps = 2;
constexpr int64_t kTraceEvery = 128;
// Steps that take long make the others wait longer: a step is given up after the time-out and so many of the longest.
constexpr int kPatience = 10;
// A step's end is looked for without sleeping while it is due: sleeping through it would leave the device idle.
constexpr Duration kPoll = std::chrono::microseconds(50);
constexpr Duration kEarly = std::chrono::milliseconds(1);

class DeviceEngine final : public Engine, public WholePlacement {
 public:
  DeviceEngine(const EngineParts& parts, const RankDevice& rank);
  ~DeviceEngine() override;

  StepVerdict run(const StepRequest& request) override;
  Placement& placement() override { return *this; }
  uint64_t order_digest() const override { return feed_->digest(); }
  std::function<void()> copy_out() override;
  double traced_seconds() const override { return traced_; }

  ModelRunner* runner() override { return runner_.get(); }
  void settle(const char* operation) override {
    device_.record(done_, compute_);
    await(done_, operation, static_cast<uint64_t>(step_));
  }
  std::vector<at::Tensor> placed(const std::vector<at::Tensor>& data) override;
  /// `step` is for torch's generator alone, from which no captured step draws.
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.batch, 0, lane, micro), 0, true, &inputs_->keys};
  }
  RunnerOptions options() const override { return {place_, &device_, low_, compute_type(p_.job), nullptr}; }

 private:
  void join(const DeviceLibrary& library);
  void place_gradients();
  void make_reductions();
  void make_tables();
  UpdateArguments update_of(int unit, const UnitTable& table);
  void make_runner();
  StreamHandlers handlers();
  void update(const Instruction& i, Stream stream);
  void write_inputs(const StepRequest& request);
  void issue(Stream first, bool timed);
  void capture();
  void leave_capture();
  void await(StreamEvent event, const std::string& operation, uint64_t step);
  void let_go();
  [[noreturn]] void give_up(const std::string& operation, uint64_t step, Time since, const std::string& reason);
  template <class T>
  T* on_device(const std::vector<T>& values);
  template <class T>
  T* take(BufferKind kind, int64_t count);

  const EngineParts p_;
  const StateKernels& state_;
  Device& device_;
  const at::Device place_;
  const Precision precision_;
  const Duration timeout_;
  std::unique_ptr<DeviceGroup> group_;  // null: one rank
  Stream compute_, captures_, copies_;
  std::vector<Stream> streams_;  // by queue
  StreamEvent done_, copied_out_;

  std::vector<std::unique_ptr<Arena>> arenas_;
  float* partials_ = nullptr;
  std::optional<GradientMemory> gradients_;
  std::vector<std::unique_ptr<DeviceReduction>> reductions_;
  std::vector<void*> low_;  // by unit

  struct Squares {
    const StateChunk* chunks;
    int64_t count;
  };
  std::vector<Squares> squares_;          // by bucket, of my slice
  std::vector<UpdateArguments> updates_;  // by unit
  VoteLayout votes_layout_;
  double* votes_ = nullptr;
  std::span<std::byte> pinned_inputs_, pinned_outcome_;
  StepInputs* inputs_ = nullptr;  // on the device; the rules behind it
  StepOutcome* outcome_ = nullptr;
  size_t rule_count_ = 0;
  uint32_t first_update_ = 0;  // id of the instruction

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<DeviceFeed> feed_;
  std::unique_ptr<StreamExecutor> executor_;
  CapturedStep captured_;
  bool may_capture_ = false;
  int64_t rounds_ = 0, step_ = 0;
  double traced_ = 0;                 // seconds
  Duration longest_{0}, typical_{0};  // the longest step, and how long the last one was waited for
};

DeviceEngine::DeviceEngine(const EngineParts& parts, const RankDevice& rank)
    : WholePlacement(parts.model, parts.lanes),
      p_(parts),
      state_(rank.library->state),
      device_(*rank.device),
      place_(rank.place()),
      precision_(precision_of(parts.job.numerics)),
      timeout_(timeout_of(parts.job)) {
  Device& device = *rank.device;
  compute_ = rank.compute;
  captures_ = device.make_stream();
  copies_ = device.make_stream();
  streams_.push_back(compute_);
  for (size_t q = 1; q < p_.program().queues.size(); ++q) streams_.push_back(device.make_stream());
  done_ = device.make_event(false);
  copied_out_ = device.make_event(false);
  device.record(copied_out_, copies_);
  device.make_current(compute_);
  join(*rank.library);
  place_gradients();
  make_reductions();
  make_tables();
  make_runner();
  feed_ = std::make_unique<DeviceFeed>(p_.model, p_.batch, p_.lanes, p_.loader, device, place_, p_.accounts);
  executor_ = std::make_unique<StreamExecutor>(p_.program(), handlers(), device, streams_);
  may_capture_ = p_.job.layout.graph && device.captures() && capture_faults(p_.model).empty();
  device.synchronise(compute_);
}

// An exception may have left work on the streams that waits for peers: giving memory back would wait with it, and the
// rank would never say what happened.
DeviceEngine::~DeviceEngine() {
  if (std::uncaught_exceptions() > 0) let_go();
  if (captured_.handle != nullptr) device_.destroy(captured_);
  if (!pinned_inputs_.empty()) device_.give_back_pinned(pinned_inputs_);
  if (!pinned_outcome_.empty()) device_.give_back_pinned(pinned_outcome_);
}

template <class T>
T* DeviceEngine::take(BufferKind kind, int64_t count) {
  if (count == 0) return nullptr;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  arenas_.push_back(std::make_unique<Arena>(kind, bytes, p_.accounts, &device_));
  return reinterpret_cast<T*>(arenas_.back()->take(bytes).data());
}

template <class T>
T* DeviceEngine::on_device(const std::vector<T>& values) {
  T* memory = take<T>(BufferKind::kWork, static_cast<int64_t>(values.size()));
  if (memory == nullptr) return memory;
  device_.copy(compute_, memory, values.data(), values.size() * sizeof(T));
  device_.synchronise(compute_);
  return memory;
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
  partials_ = take<float>(BufferKind::kGradient, partials_of(p_.context.rank, p_.plan) * p_.places.partial_floats);
  gradients_.emplace(p_.program(), p_.places, partials_, p_.accounts, &device_);
}

void DeviceEngine::make_reductions() {
  for (size_t b = 0; b < p_.plan.buckets.size(); ++b) {
    const ReductionSpec spec = reduction_spec(p_.plan, p_.shape, p_.places, static_cast<int>(b), p_.job);
    reductions_.push_back(std::make_unique<DeviceReduction>(spec, partials_, device_, group_.get(), state_));
    p_.accounts.add(BufferKind::kMessage, reductions_.back()->scratch_bytes());
  }
}

/// Brings what the kernels look up to the device, and takes the memory of inputs, votes and outcome.
void DeviceEngine::make_tables() {
  const StateTables tables = state_tables(p_.shape, p_.updater);
  const int units = static_cast<int>(p_.shape.blocks.size());
  rule_count_ = p_.updater.rule_count();
  const size_t input_bytes = sizeof(StepInputs) + rule_count_ * sizeof(RuleScalars);
  inputs_ = reinterpret_cast<StepInputs*>(take<std::byte>(BufferKind::kWork, static_cast<int64_t>(input_bytes)));
  outcome_ = reinterpret_cast<StepOutcome*>(take<std::byte>(BufferKind::kWork, outcome_bytes(units)));
  pinned_inputs_ = device_.take_pinned(input_bytes);
  pinned_outcome_ = device_.take_pinned(static_cast<size_t>(outcome_bytes(units)));
  for (int u = 0; u < units; ++u) updates_.push_back(update_of(u, tables.units[u]));
  for (size_t b = 0; b < p_.plan.buckets.size(); ++b) {
    const ReductionSpec spec = reduction_spec(p_.plan, p_.shape, p_.places, static_cast<int>(b), p_.job);
    const auto mine = counted_in(tables, p_.plan.buckets[b], spec.slices[p_.context.rank]);
    squares_.push_back({on_device(mine), static_cast<int64_t>(mine.size())});
  }
  votes_layout_.units = units;
  votes_layout_.micro_batches = p_.batch.lanes * p_.batch.micro_batches;
  votes_layout_.chunks = tables.places();
  votes_layout_.unit_chunks = on_device(tables.unit_chunks);
  votes_ = take<double>(BufferKind::kWork, votes_layout_.size());
  for (const Queue& queue : p_.program().queues)
    for (const Instruction& i : queue.instructions)
      if (i.op == Op::kUpdate && first_update_ == 0) first_update_ = i.id;
}

UpdateArguments DeviceEngine::update_of(int unit, const UnitTable& table) {
  UpdateArguments update;
  if (table.chunks.empty()) return update;
  update.kind = p_.updater.kind();
  update.nesterov = p_.job.train.nesterov;
  update.unit = unit;
  update.parameters = p_.units.parameters(unit);
  update.gradients = partials_ + p_.places.of_unit(unit);
  const auto slots = p_.units.slots(unit, 0);
  for (size_t k = 0; k < slots.size(); ++k) update.slots[k] = slots[k];
  update.precision = precision_;
  update.chunks = on_device(table.chunks);
  update.chunk_count = static_cast<int64_t>(table.chunks.size());
  update.parameter_count = static_cast<int32_t>(table.parameter_chunks.size()) - 1;
  update.rules = reinterpret_cast<const RuleScalars*>(inputs_ + 1);
  update.outcome = outcome_;
  if (update.kind != UpdateKind::kLamb) return update;
  update.chunk_norms = take<double>(BufferKind::kWork, 2 * update.chunk_count);
  update.trust = take<float>(BufferKind::kWork, update.parameter_count);
  update.parameter_chunks = on_device(table.parameter_chunks);
  return update;
}

void DeviceEngine::make_runner() {
  std::vector<float*> parameters;
  RunnerOptions options;
  options.device = place_;
  options.memory = &device_;
  options.precision = compute_type(p_.job);
  options.loss_scale = inputs_->loss_scale;
  for (size_t u = 0; u < p_.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    parameters.push_back(p_.units.parameters(unit));
    if (precision_ == Precision::kFloat32) continue;
    const int64_t size = p_.shape.blocks[u].unit_size;
    low_.push_back(take<uint16_t>(BufferKind::kParameter, size));
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
    const int64_t number = int64_t{i.lane} * p_.batch.micro_batches + i.micro;
    const auto* loss = static_cast<const double*>(runner_->loss_border().const_data_ptr());
    device_.copy(stream, votes_ + votes_layout_.losses() + number, loss, sizeof(double));
    device_.copy(stream, votes_ + votes_layout_.counts() + number, loss + 1, sizeof(double));
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
    const Squares& mine = squares_[i.bucket];
    if (mine.count > 0) state_.chunk_squares(stream, reductions_[i.bucket]->result(), mine.chunks, mine.count, votes_);
  });
  set(Op::kGather, [this](const Instruction& i, Stream stream) { reductions_[i.bucket]->gather(stream); });
  set(Op::kVote, [this](const Instruction&, Stream stream) {
    device_.copy(stream, votes_ + votes_layout_.stop(), &inputs_->stop, sizeof(double));
    if (group_) group_->sum(stream, votes_, votes_layout_.size());
    state_.commit(stream, votes_, votes_layout_, inputs_, outcome_);
  });
  set(Op::kUpdate, [this](const Instruction& i, Stream stream) { update(i, stream); });
  return on;
}

/// State that is being copied out is not written before it has left.
void DeviceEngine::update(const Instruction& i, Stream stream) {
  if (i.id == first_update_) device_.wait(stream, copied_out_, /*outside=*/true);
  state_.update(stream, updates_[i.block]);
}

void DeviceEngine::write_inputs(const StepRequest& request) {
  const TrainConfig& train = p_.job.train;
  StepInputs inputs;
  inputs.keys = {static_cast<uint64_t>(request.step), first_sample(p_.batch, request.step, 0, 0)};
  inputs.loss_scale[0] = request.loss_scale;
  inputs.clip = train.clip;
  inputs.clip_by = train.clip == 0           ? ClipBy::kNone
                   : train.clip_by == "norm" ? ClipBy::kNorm
                   : train.clip_by == "unit" ? ClipBy::kUnit
                                             : ClipBy::kNone;
  inputs.stop = p_.context.control.stop.load() != 0 ? 1 : 0;
  StepScalars scalars;
  scalars.step = request.updates;
  scalars.lr = request.lr;
  if (train.clip_by == "value") scalars.clip_value = train.clip;
  const auto rules = p_.updater.rules(scalars, int64_t{p_.batch.lanes} * p_.batch.micro_batches);
  TUTTI_CHECK(rules.size() == rule_count_, "{} rules of {}", rules.size(), rule_count_);
  std::memcpy(pinned_inputs_.data(), &inputs, sizeof inputs);
  std::memcpy(pinned_inputs_.data() + sizeof inputs, rules.data(), rules.size() * sizeof(RuleScalars));
  device_.copy(compute_, inputs_, pinned_inputs_.data(), pinned_inputs_.size());
}

void DeviceEngine::issue(Stream first, bool timed) {
  device_.zero(first, votes_, static_cast<size_t>(votes_layout_.size()) * sizeof(double));
  executor_->issue(first, timed);
}

void DeviceEngine::leave_capture() {
  try {
    device_.destroy(device_.end_capture(captures_));
  } catch (const Error&) {  // says again what failed; the stream is out of its capture
  }
}

void DeviceEngine::capture() {
  device_.make_current(captures_);
  device_.begin_capture(captures_);
  try {
    issue(captures_, false);
  } catch (const CommError&) {
    leave_capture();
    throw;
  } catch (const std::exception& e) {
    const std::string reason = e.what();
    leave_capture();
    throw Error(fmt::format("a step could not be captured ({}); layout.graph = false runs it without", reason));
  }
  captured_ = device_.end_capture(captures_);
  device_.make_current(compute_);
}

StepVerdict DeviceEngine::run(const StepRequest& request) {
  const auto step = static_cast<uint64_t>(request.step);
  const Time begin = p_.context.clock.now();
  step_ = request.step;
  write_inputs(request);
  feed_->use(request.step, compute_);
  const bool timed = rounds_ < kWarmSteps || rounds_ % kTraceEvery == 0 || !may_capture_;
  if (!timed && captured_.handle == nullptr) capture();
  const Time issued = p_.context.clock.now();
  if (timed) {
    issue(compute_, true);
  } else {
    device_.launch(captured_, compute_);
  }
  device_.copy(compute_, pinned_outcome_.data(), outcome_, pinned_outcome_.size());
  device_.record(done_, compute_);
  if (p_.job.layout.prefetch) feed_->place(request.step + 1, compute_);
  const Time waiting = p_.context.clock.now();
  await(done_, "step", step);
  typical_ = p_.context.clock.now() - waiting;
  // In the first step libraries load and choose: it stands for no other.
  if (timed && rounds_ > 0) traced_ += executor_->collect(p_.trace, step, issued);
  ++rounds_;
  if (rounds_ > kWarmSteps) longest_ = std::max(longest_, p_.context.clock.now() - begin);

  StepOutcome outcome;
  std::memcpy(&outcome, pinned_outcome_.data(), sizeof outcome);
  const double divisor = outcome.targets > 0 ? outcome.targets : 1;
  StepVerdict verdict;
  verdict.loss = outcome.loss / divisor;
  verdict.gradient_norm = std::sqrt(outcome.squares) / divisor / request.loss_scale;
  verdict.finite = outcome.finite != 0;
  verdict.stop = outcome.stop > 0;
  return verdict;
}

void DeviceEngine::await(StreamEvent event, const std::string& operation, uint64_t step) {
  Clock& clock = p_.context.clock;
  const Time since = clock.now();
  const Deadline deadline = clock.after(timeout_ + kPatience * longest_);
  const Cancel& cancel = p_.context.control.cancel;
  const Time due = since + typical_ - kEarly, overdue = since + typical_ + typical_ / 4 + kEarly;
  for (int64_t looks = 0; !device_.done(event); ++looks) {
    const Time now = clock.now();
    const bool soon = now >= due && now <= overdue;
    if (soon && looks % 256 != 0) continue;
    if (cancel.cancelled()) give_up(operation, step, since, cancel.reason());
    if (group_)
      if (const std::string fault = group_->fault(); !fault.empty()) give_up(operation, step, since, fault);
    if (now >= deadline.at) give_up(operation, step, since, "timed out");
    if (!soon) clock.sleep(kPoll, nullptr);
  }
}

/// Ends what is on the device without waiting for it; only destruction is left after it.
void DeviceEngine::let_go() {
  // A communicator does not end before the graphs that use it.
  if (captured_.handle != nullptr) device_.destroy(std::exchange(captured_, CapturedStep{}));
  if (group_) group_->abort();
  device_.abandon();
}

void DeviceEngine::give_up(const std::string& operation, uint64_t step, Time since, const std::string& reason) {
  const Duration waited = p_.context.clock.now() - since;
  std::string where = operation;
  if (const std::string at = executor_->unfinished(); !at.empty()) where += " at " + at;
  let_go();
  throw CommError({p_.context.rank, where + " on " + device_.info().name, -1, step, waited, reason});
}

std::vector<at::Tensor> DeviceEngine::placed(const std::vector<at::Tensor>& data) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : data) tensors.push_back(tensor.to(place_));
  return tensors;
}

std::function<void()> DeviceEngine::copy_out() {
  device_.wait(copies_, done_);
  p_.units.copy_out(copies_);
  device_.record(copied_out_, copies_);
  // Waited for on another thread than the steps': it touches nothing of theirs.
  return [&device = device_, event = copied_out_, &context = p_.context, step = static_cast<uint64_t>(step_),
          patience = timeout_ + kPatience * longest_] {
    const Time since = context.clock.now();
    while (!device.done(event)) {
      const Cancel& cancel = context.control.cancel;
      const Duration waited = context.clock.now() - since;
      if (cancel.cancelled() || waited > patience)
        throw CommError({context.rank, "copy of the state out of " + device.info().name, -1, step, waited,
                         cancel.cancelled() ? cancel.reason() : "timed out"});
      context.clock.sleep(kPoll, nullptr);
    }
  };
}

}  // namespace

std::unique_ptr<Engine> make_device_engine(const EngineParts& parts, const RankDevice& device) {
  return std::make_unique<DeviceEngine>(parts, device);
}

}  // namespace tutti
