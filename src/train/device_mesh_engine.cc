// Read aloud like mesh_engine.cc: each handler says what an instruction means on a device. Where things lie is said by
// the program, what travels by plan/transfers.h, over which group by train/mesh_groups.h; when a step is issued,
// captured and waited for by train/device_steps.h.
#include "train/device_mesh_engine.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <exception>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "exec/stream_executor.h"
#include "model/adaptor.h"
#include "model/device_tensor.h"
#include "model/plan_runner.h"
#include "train/channels.h"
#include "train/device_commit.h"
#include "train/device_feed.h"
#include "train/device_steps.h"
#include "train/device_travel.h"

namespace tutti {

namespace {

/// One of the two programs of a rank, of steps or of evaluation, and what its instructions run with.
struct Side {
  const Program& program;
  PlanRunner runner;
  DeviceTravel travel;
  std::unordered_map<int, std::vector<at::Tensor>> data = {};  // by the first data buffer of a slot
  std::unordered_map<int, int> slot_of = {};                   // data buffer -> first of its slot
  std::unique_ptr<StreamExecutor> executor = nullptr;

  /// The slot that the instruction's segment reads data from; -1: it reads none.
  int slot(const Instruction& i) const {
    for (int b : i.flow.in)
      if (const auto it = slot_of.find(b); it != slot_of.end()) return it->second;
    return -1;
  }
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
  void find_data(Side& side, const std::function<std::byte*(int)>& memory);
  void prepare_norm(const Instruction& i);
  void prepare_update(const Instruction& i);
  void make_copies();
  void rehearse();
  void set_travel(StreamHandlers& on, Side& side);
  StreamHandlers handlers();
  StreamHandlers forward_handlers();
  std::span<const at::Tensor> data_of(const Instruction& i) const;
  at::Tensor whole_output();
  void fold(const Instruction& i, Stream stream);
  /// Where float 0 of the unit's reduced gradient would lie, from the buffer that holds it or a slice of it.
  const float* gradient(int buffer) const {
    return p_.memory.floats(buffer) - p_.program().buffers[buffer].range.begin;
  }

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
  std::vector<ChunkList> squares_;        // by unit, of my slice
  std::vector<UpdateArguments> updates_;  // by unit
  uint32_t first_update_ = 0;             // id of the instruction
  std::unique_ptr<DeviceFeed> feed_;      // null: no segment here reads data
  int64_t step_ = 0;
  bool rehearsing_ = false;
  Stream shared_;  // of sums over stages; none where there are none

  Pass forward_pass_;
  const std::vector<at::Tensor>* forward_batch_ = nullptr;
  const Instruction* forward_end_ = nullptr;
  std::map<int, at::Tensor> outputs_;  // by column, of the forward under way
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
      squares_(parts.shape.blocks.size()),
      updates_(parts.shape.blocks.size()) {
  device_.make_current(compute_);
  for (size_t q = 0; q < streams_.size(); ++q)
    if (p_.program().queues[q].name == "shared") shared_ = streams_[q];
  greet();
  find_data(train_, [this](int b) { return p_.memory.of(b); });
  find_data(forward_, [this](int b) { return p_.memory.of_forward(b); });
  for (const Queue& queue : train_.program.queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op == Op::kNorm) prepare_norm(i);
      if (i.op == Op::kUpdate) prepare_update(i);
    }
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
                        p_.memory.window().data(), place_, groups_, low_, precision_, device_, state_, arrays_})};
}

void DeviceMeshEngine::greet() {
  if (p_.context.size == 1) return;
  groups_.greet(compute_, arrays_.take<std::byte>(BufferKind::kWork, MeshGroups::greeting_bytes(p_.context.size)));
  steps_.settle("greeting", 0);
}

void DeviceMeshEngine::find_data(Side& side, const std::function<std::byte*(int)>& memory) {
  for (const Instruction& i : side.program.queues[0].instructions) {
    if (i.op != Op::kLoad || side.data.contains(i.writes[0])) continue;
    for (size_t d = 0; d < p_.model.data.size(); ++d) {
      const Border& border = p_.model.data[d];
      side.data[i.writes[0]].push_back(view_on(on_, memory(i.writes[d]), border.dims, border.type));
      side.slot_of[i.writes[d]] = i.writes[0];
    }
  }
}

/// Of what this rank owns of the unit's sum.
void DeviceMeshEngine::prepare_norm(const Instruction& i) {
  std::vector<StateChunk> chunks;
  for (const StateChunk& chunk : commit_.tables().units[i.block].counted)
    if (place_.owned(i.block).contains(chunk.at)) chunks.push_back(chunk);
  squares_[i.block] = commit_.on_device(chunks);
}

/// Of what this rank holds of the unit.
void DeviceMeshEngine::prepare_update(const Instruction& i) {
  if (first_update_ == 0) first_update_ = i.id;
  const int unit = i.block;
  const Held& held = p_.units.held(unit);
  UpdateArguments& update = updates_[unit] = commit_.update_of(unit, held.moments);
  if (update.chunk_count == 0) return;
  update.parameters = p_.memory.floats(i.reads[2]) - held.parameters.begin;
  update.gradients = gradient(i.reads[1]);
  for (int k = 0; k < p_.options.optimizer_slots; ++k)
    update.slots[k] = p_.memory.floats(i.reads[3]) + k * align_up(held.moments.size(), kAlign) - held.moments.begin;
  // What is gathered or fetched has none here: its copies lie where it comes to.
  if (void* low = low_.of(p_.memory.of(i.writes[0])); low != nullptr)
    update.low = static_cast<uint16_t*>(low) - held.parameters.begin;
  else
    update.precision = Precision::kFloat32;
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
  set(Op::kNorm, [this](const Instruction& i, Stream stream) {
    commit_.count_squares(stream, gradient(i.reads[0]), squares_[i.block]);
  });
  set(Op::kVote, [this](const Instruction&, Stream stream) { commit_.decide(stream, groups_.world()); });
  set(Op::kUpdate, [this](const Instruction& i, Stream stream) {
    if (i.id == first_update_) steps_.await_copies(stream);  // not written before it has left
    if (updates_[i.block].chunk_count > 0) state_.update(stream, updates_[i.block]);
  });
  set_travel(on, train_);
  return on;
}

StreamHandlers DeviceMeshEngine::forward_handlers() {
  StreamHandlers on;
  auto set = [&on](Op op, StreamHandler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this](const Instruction& i, Stream stream) {
    const auto& tensors = forward_.data.at(i.writes[0]);
    for (size_t d = 0; d < tensors.size(); ++d) {
      const at::Tensor& from = (*forward_batch_)[d];
      device_.copy(stream, tensors[d].data_ptr(), from.const_data_ptr(), from.nbytes());
    }
  });
  set(Op::kForward, [this](const Instruction& i, Stream) {
    const int slot = forward_.slot(i);
    forward_.runner.forward(i, forward_pass_, slot < 0 ? std::span<const at::Tensor>{} : forward_.data.at(slot));
    const int column = p_.shape.blocks[i.block].column;
    if (at::Tensor output = forward_.runner.output(i, p_.model.output); output.defined()) outputs_[column] = output;
    if (place_.is_end(i) && column == 0) forward_end_ = &i;
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
  if (train_.slot(i) < 0) return {};
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
  if (p_.model.task != Task::kLoss && place_.ends()) output = whole_output();
  steps_.settle("evaluation", static_cast<uint64_t>(step_));
  if (!place_.reports() || !place_.owns(pass.lane)) return std::nullopt;
  Evaluated evaluated;
  evaluated.data = forward_.data.begin()->second;
  evaluated.output = output;
  evaluated.loss = forward_.runner.loss(*forward_end_);
  return evaluated;
}

/// What evaluation reads: where columns have parts of it, those of all tensor ranks come to the first.
at::Tensor DeviceMeshEngine::whole_output() {
  if (!p_.model.output_sliced) return outputs_.contains(0) ? outputs_.at(0) : at::Tensor();
  std::vector<DeviceSend> sends;
  std::vector<DeviceReceive> receives;
  const int tensor = place_.at().tensor;
  for (int t = 1; t < p_.options.mesh.tensor; ++t)
    for (int64_t c = place_.places().columns[t].begin; c < place_.places().columns[t].end; ++c) {
      at::Tensor& part = outputs_[static_cast<int>(c)];
      if (tensor == 0) part = at::empty_like(outputs_.at(0));
      if (tensor == 0) receives.push_back({t, part.data_ptr(), part.nbytes()});
      if (tensor == t) sends.push_back({0, part.data_ptr(), part.nbytes()});
    }
  if (groups_.columns() != nullptr) groups_.columns()->exchange(compute_, sends, receives);
  if (tensor != 0) return {};
  std::vector<at::Tensor> parts;
  for (const auto& [column, part] : outputs_) parts.push_back(part);
  return at::cat(parts, -1);
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
