// Read aloud like mesh_engine.cc: each handler says what an instruction means on a device. Where things lie is said by
// the program, what travels by plan/make/transfers.h, over which group by engine/device/groups.h; when a step is
// issued, captured and waited for by engine/device/steps.h.
#include "engine/device/mesh.h"

#include <exception>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/channels.h"
#include "engine/data_slots.h"
#include "engine/device/commit.h"
#include "engine/device/feed.h"
#include "engine/device/steps.h"
#include "engine/device/travel.h"
#include "engine/device/updates.h"
#include "engine/output.h"
#include "exec/stream_executor.h"
#include "model/adaptor.h"
#include "model/plan_runner.h"

namespace tutti {

namespace {

/// One of the two programs of a rank, of steps or of evaluation, and what its instructions run with.
struct Side {
  const Program& program;
  PlanRunner runner;
  DeviceTravel travel;
  DataSlots data;
  std::unique_ptr<StreamExecutor> executor = nullptr;
};

class DeviceMeshEngine final : public Engine, public Placement {
 public:
  DeviceMeshEngine(const MeshParts& parts, const RankDevice& rank);
  ~DeviceMeshEngine() override;

  StepVerdict run(const StepRequest& request) override;
  Placement& placement() override { return *this; }
  uint64_t order_digest() const override { return place_.reports() && feed_ ? feed_->digest() : 0; }
  std::function<void()> copy_out() override {
    return steps_.copy_out(static_cast<uint64_t>(step_), [this](Stream stream) { p_.units.copy_out(stream); });
  }
  double traced_seconds() const override { return steps_.traced_seconds(); }

  bool computes(int lane) const override { return place_.computes(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override;
  int64_t output_width() override { return place_.output_width(); }
  void watch(int* block) override { watched_ = block; }
  ModelRunner* runner() override { return nullptr; }
  /// `step` is for torch's generator alone, from which no captured step draws.
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.options.batch, 0, lane, micro), 0, true, &commit_.inputs()->keys};
  }
  RunnerOptions options() const override { return {on_, &device_, {}, compute_type(p_.job), nullptr}; }

 private:
  std::vector<Stream> make_streams() const;
  DeviceSteps::Parts step_parts() const;
  Side make_side(bool forward_only);
  void greet();
  void make_copies();
  void rehearse();
  void set_travel(StreamHandlers& on, Side& side);
  StreamHandlers handlers();
  StreamHandlers forward_handlers();
  std::span<const at::Tensor> data_of(const Instruction& i) const;
  void fold(const Instruction& i, Stream stream);

  const MeshParts p_;
  const StateKernels& state_;
  Device& device_;
  const at::Device on_;
  const Precision precision_;
  const MeshPlace place_;
  const Stream compute_;
  const std::vector<Stream> streams_;  // by queue
  DeviceArrays arrays_;
  DeviceCommit commit_;
  const LowCopies low_;
  const MeshGroups groups_;
  DeviceSteps steps_;
  Side train_, forward_;
  DeviceUpdates updates_;
  OutputParts outputs_;
  std::unique_ptr<DeviceFeed> feed_;  // null: no segment here reads data
  int64_t step_ = 0;
  bool rehearsing_ = false;
  Stream shared_;  // of sums over stages; none where there are none

  int* watched_ = nullptr;
  std::vector<std::pair<int, at::Tensor>> finite_;  // by forward, while that is watched: its block, and whether it is
  Pass forward_pass_;
  const std::vector<at::Tensor>* forward_batch_ = nullptr;
  const Instruction* forward_end_ = nullptr;
};

DeviceMeshEngine::DeviceMeshEngine(const MeshParts& parts, const RankDevice& rank)
    : p_(parts),
      state_(rank.library->state),
      device_(*rank.device),
      on_(rank.place()),
      precision_(precision_of(parts.job.numerics)),
      place_(parts.model, parts.shape, parts.options, parts.context.rank),
      compute_(rank.compute),
      streams_(make_streams()),
      arrays_(device_, compute_, parts.accounts),
      commit_({parts.job, parts.shape, parts.updater, parts.context, parts.accounts, device_, state_, compute_}),
      low_(parts.program(), parts.forward_plan.programs[parts.context.rank], parts.memory, parts.shape, precision_,
           state_, device_, parts.accounts),
      groups_({parts.job, parts.context, *rank.library, device_, parts.plan, parts.forward_plan, parts.options.mesh,
               timeout_of(parts.job)}),
      steps_(step_parts()),
      train_(make_side(false)),
      forward_(make_side(true)),
      updates_(p_, place_, low_, state_, commit_),
      outputs_(p_.model, place_, move_on_stream(groups_.columns(), compute_)) {
  device_.make_current(compute_);
  for (size_t q = 0; q < streams_.size(); ++q)
    if (p_.program().queues[q].name == "shared") shared_ = streams_[q];
  greet();
  train_.executor = std::make_unique<StreamExecutor>(train_.program, handlers(), device_, streams_);
  forward_.executor = std::make_unique<StreamExecutor>(forward_.program, forward_handlers(), device_, streams_);
  std::vector<MicroBatch> sequence;
  for (const Instruction& i : train_.program.queues[0].instructions)
    if (i.op == Op::kLoad) sequence.push_back({i.lane, i.micro});
  if (!sequence.empty()) feed_ = std::make_unique<DeviceFeed>(p_.model, sequence, p_.loader, device_, on_, p_.accounts);
  low_.write_all(compute_);
  make_copies();
  steps_.settle("first copies", 0);
  if (p_.options.mesh.pipeline > 1) rehearse();
}

// An exception may have left work on the streams that waits for peers: giving memory back would wait with it, and the
// rank would never say what happened.
DeviceMeshEngine::~DeviceMeshEngine() {
  if (std::uncaught_exceptions() > 0) steps_.let_go();
}

std::vector<Stream> DeviceMeshEngine::make_streams() const {
  std::vector<Stream> streams{compute_};
  while (streams.size() < p_.program().queues.size()) streams.push_back(device_.make_stream());
  return streams;
}

DeviceSteps::Parts DeviceMeshEngine::step_parts() const {
  const bool captures = p_.job.layout.graph && device_.captures() && capture_faults(p_.model, p_.job.layout).empty();
  return {device_, compute_, p_.context, timeout_of(p_.job), p_.trace, captures, groups_.all()};
}

Side DeviceMeshEngine::make_side(bool forward_only) {
  const auto memory = [this, forward_only](int b) { return forward_only ? p_.memory.of_forward(b) : p_.memory.of(b); };
  const Plan& plan = forward_only ? p_.forward_plan : p_.plan;
  const Program& program = plan.programs[p_.context.rank];
  RunnerOptions options;
  options.device = on_;
  options.precision = compute_type(p_.job);
  options.loss_scale = commit_.inputs()->loss_scale;
  if (precision_ != Precision::kFloat32) options.low_memory = [this, memory](int b) { return low_.of(memory(b)); };
  return {program, PlanRunner(p_.model, p_.shape, program, memory, p_.accounts, std::move(options)),
          DeviceTravel({plan, forward_only ? p_.forward_options : p_.options, p_.shape, p_.context.rank, memory,
                        p_.memory.window().data(), place_, groups_, low_, precision_, device_, state_, arrays_}),
          DataSlots(p_.model, program, memory, on_)};
}

void DeviceMeshEngine::greet() {
  if (p_.context.size == 1) return;
  groups_.greet(compute_, arrays_.take<std::byte>(BufferKind::kWork, MeshGroups::greeting_bytes(p_.context.size)));
  steps_.settle("greeting", 0);
}

/// Copies of shared parameters are refreshed behind every Update; the first ones are made here.
void DeviceMeshEngine::make_copies() {
  for (const Instruction* refresh : train_.travel.refreshes()) train_.travel.put(*refresh, compute_);
}

/// A step without the messages between stages, of which nothing is written. The first use of a kernel may wait for the
/// whole device: in a first step that would be for messages that peers send only after this rank's next ones.
void DeviceMeshEngine::rehearse() {
  rehearsing_ = true;
  StepRequest request;
  request.step = 0;
  commit_.begin(request);
  commit_.spoil(compute_);
  train_.executor->issue(compute_, false);
  steps_.settle("rehearsal", 0);
  rehearsing_ = false;
}

StreamHandlers DeviceMeshEngine::handlers() {
  StreamHandlers on;
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [](const Instruction&, Stream) {});  // the feed put all of the step's in their place
  set(Op::kForward, [this](const Instruction& i, Stream stream) {
    train_.runner.forward(i, pass_of(p_.job.train.seed, step_, i.lane, i.micro), data_of(i));
    if (!place_.counts_loss(i)) return;
    const at::Tensor loss = train_.runner.output(i, "loss");
    commit_.count_loss(stream, i.lane, i.micro, static_cast<const double*>(loss.const_data_ptr()));
  });
  set(Op::kBackward, [this](const Instruction& i, Stream) {
    train_.runner.backward(i, pass_of(p_.job.train.seed, step_, i.lane, i.micro), data_of(i));
  });
  set(Op::kFold, [this](const Instruction& i, Stream stream) { fold(i, stream); });
  set(Op::kNorm, [this](const Instruction& i, Stream stream) { updates_.put_norm(i, stream); });
  set(Op::kVote, [this](const Instruction&, Stream stream) { commit_.decide(stream, groups_.world()); });
  set(Op::kUpdate, [this](const Instruction& i, Stream stream) {
    if (updates_.is_first(i)) steps_.await_copies(stream);  // not written before it has left
    updates_.put_update(i, stream);
  });
  set_travel(on, train_);
  return on;
}

StreamHandlers DeviceMeshEngine::forward_handlers() {
  StreamHandlers on;
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this](const Instruction& i, Stream stream) {
    const auto& tensors = forward_.data.filled_by(i);
    for (size_t d = 0; d < tensors.size(); ++d) {
      const at::Tensor& from = (*forward_batch_)[d];
      device_.copy(stream, tensors[d].data_ptr(), from.const_data_ptr(), from.nbytes());
    }
  });
  set(Op::kForward, [this](const Instruction& i, Stream) {
    forward_.runner.forward(i, forward_pass_, forward_.data.read_by(i));
    const int column = p_.shape.blocks[i.block].column;
    outputs_.add(column, forward_.runner.output(i, p_.model.output));
    if (place_.is_end(i) && column == 0) forward_end_ = &i;
    if (watched_ != nullptr) finite_.emplace_back(i.block, forward_.runner.finite(i));
  });
  set_travel(on, forward_);
  return on;
}

void DeviceMeshEngine::set_travel(StreamHandlers& on, Side& side) {
  for (Op op : {Op::kReduce, Op::kGather, Op::kExchange, Op::kSend, Op::kRecv, Op::kFetch, Op::kEvict})
    on[static_cast<int>(op)] = [this, &side](const Instruction& i, Stream stream) {
      const bool far =
          i.op == Op::kSend || i.op == Op::kRecv || (shared_.handle != nullptr && stream.handle == shared_.handle);
      if (!rehearsing_ || !far) side.travel.put(i, stream);
    };
}

/// A segment that reads no data gets none.
std::span<const at::Tensor> DeviceMeshEngine::data_of(const Instruction& i) const {
  if (train_.data.read_by(i).empty()) return {};
  return feed_->tensors(i.lane, i.micro);
}

void DeviceMeshEngine::fold(const Instruction& i, Stream stream) {
  for (const Add& add : i.adds) {
    const Range range = p_.program().buffers[add.into].range;
    state_.add_into(stream, p_.memory.floats(add.into), p_.memory.floats(add.from),
                    range.empty() ? p_.shape.blocks[i.block].gradient_size : range.size());
  }
}

StepVerdict DeviceMeshEngine::run(const StepRequest& request) {
  step_ = request.step;
  commit_.begin(request);
  if (feed_) feed_->use(step_, compute_);
  steps_.launch(*train_.executor, [this](Stream first) { commit_.clear(first); });
  commit_.end();
  steps_.mark();
  if (feed_ && p_.job.layout.prefetch) feed_->place(step_ + 1, compute_);
  steps_.finish(*train_.executor, static_cast<uint64_t>(step_));
  return commit_.verdict(request);
}

std::optional<Evaluated> DeviceMeshEngine::forward(const Pass& pass, const std::vector<at::Tensor>& data) {
  forward_pass_ = pass;
  forward_batch_ = &data;
  outputs_.clear();
  forward_.executor->issue(compute_, false);
  at::Tensor output;
  if (p_.model.task != Task::kLoss && place_.ends()) output = outputs_.whole();
  steps_.settle("evaluation", static_cast<uint64_t>(step_));
  for (const auto& [block, finite] : std::exchange(finite_, {}))
    if (*watched_ < 0 && finite.defined() && !finite.item<bool>()) *watched_ = block;
  if (!place_.reports() || !place_.owns(pass.lane)) return std::nullopt;
  Evaluated evaluated;
  evaluated.data = forward_.data.first();
  evaluated.output = output;
  evaluated.loss = forward_.runner.loss(*forward_end_);
  return evaluated;
}

}  // namespace

std::unique_ptr<Engine> make_device_mesh_engine(const MeshParts& parts, const RankDevice& device) {
  return std::make_unique<DeviceMeshEngine>(parts, device);
}

// A captured step's branches are put on queues that the device chooses. Ranks of one data axis meet in one order; where
// compute itself waits for others, it could stand behind a meeting that they reach later.
std::vector<std::string> capture_faults(const Model& model, const LayoutConfig& layout) {
  std::vector<std::string> faults = capture_faults(model);
  if (layout.pipeline > 1) faults.push_back("stages of a pipeline wait for each other inside of a step");
  if (layout.tensor > 1) faults.push_back("tensor ranks wait for each other inside of a step");
  return faults;
}

}  // namespace tutti
