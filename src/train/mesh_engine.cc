// Read aloud like host_engine.cc: each handler says what an instruction means on the host. Where things lie is said by
// the program, what travels by plan/transfers.h; nothing is decided here.
#include "train/mesh_engine.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "comm/exchange.h"
#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/pulls.h"
#include "comm/roll_call.h"
#include "exec/executor.h"
#include "model/plan_runner.h"
#include "plan/transfers.h"
#include "tensor/threads.h"
#include "train/channels.h"
#include "train/commit.h"
#include "train/nonfinite.h"

namespace tutti {

namespace {

/// What a queue's reduces hold for messages: they run one after another.
int64_t queue_message_bytes(const Transfers& transfers, const Queue& queue, int rank, bool windows) {
  int64_t bytes = 0;
  for (const Instruction& i : queue.instructions)
    if (i.op == Op::kReduce) bytes = std::max(bytes, SumPull::scratch_bytes(transfers.sum(i), rank, windows));
  return align_up(bytes, 256);
}

int64_t message_bytes(const MeshParts& parts) {
  return message_bytes(parts.plan, parts.shape, parts.options, parts.context.rank, reaches_all(parts.transport));
}

constexpr uint32_t kOutputId = (1u << 22) - 1;  // below the instructions that meet

class MeshEngine final : public Engine, public Placement {
 public:
  explicit MeshEngine(const MeshParts& parts)
      : p_(parts),
        timeout_(timeout_of(parts.job)),
        at_(parts.options.mesh.at(parts.context.rank)),
        forward_program_(parts.forward_plan.programs[parts.context.rank]),
        transfers_(parts.plan, parts.shape, parts.options),
        forward_transfers_(parts.forward_plan, parts.shape, parts.forward_options),
        places_(transfers_.places()),
        scratch_(BufferKind::kMessage, static_cast<size_t>(message_bytes(parts)), parts.accounts),
        channel_(parts.transport, parts.context.clock, kDataChannel, timeout_),
        roll_call_(parts.plan, parts.context.rank, parts.transport, parts.context.clock, kRollCall),
        forward_roll_call_(parts.forward_plan, parts.context.rank, parts.transport, parts.context.clock,
                           kForwardRollCall),
        runner_(
            parts.model, parts.shape, parts.program(), [this](int b) { return p_.memory.of(b); }, parts.accounts),
        forward_runner_(
            parts.model, parts.shape, forward_program_, [this](int b) { return p_.memory.of_forward(b); },
            parts.accounts),
        unit_squares_(parts.shape.blocks.size()) {
    for (const Queue& queue : p_.program().queues) {
      const int64_t bytes = queue_message_bytes(transfers_, queue, p_.context.rank, reaches_all(p_.transport));
      queue_scratch_ = scratch_.take(static_cast<size_t>(bytes));
      for (const Instruction& i : queue.instructions) prepare(i, false);
    }
    for (const Queue& queue : forward_program_.queues)
      for (const Instruction& i : queue.instructions) prepare(i, true);
    find_chunks();
    const int threads = static_cast<int>(p_.job.numerics.threads);
    const auto start = [threads] { prepare_compute_thread(threads); };
    Clock& clock = p_.context.clock;
    const Cancel* cancel = &p_.context.control.cancel;
    executor_ = std::make_unique<Executor>(p_.program(), handlers(), clock, cancel, &p_.trace, start);
    forward_executor_ = std::make_unique<Executor>(forward_program_, forward_handlers(), clock, cancel, nullptr, start);
    make_copies();
  }

  StepVerdict run(const StepRequest& request) override {
    request_ = request;
    mine_ = {};
    std::fill(unit_squares_.begin(), unit_squares_.end(), ExactSum{});
    StepVerdict verdict;
    try {
      executor_->run(round_++);
    } catch (const NonFinite&) {
      verdict.finite = false;
    } catch (const CommError&) {
      roll_call_.rethrow();
      throw;
    }
    verdict.loss = all_.mean_loss();
    verdict.gradient_norm = all_.gradient_norm();
    verdict.stop = all_.stop != 0;
    return verdict;
  }
  Placement& placement() override { return *this; }
  uint64_t order_digest() const override { return reports() ? p_.loader.digest() : 0; }

  bool computes(int lane) const override;
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override;
  int64_t output_width() override;
  ModelRunner* runner() override { return nullptr; }
  Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
    return {seed, step, lane, micro, first_sample(p_.options.batch, step, lane, micro)};
  }

 private:
  void prepare(const Instruction& i, bool forward_only);
  void find_chunks();
  void make_copies();
  Handlers handlers();
  Handlers forward_handlers();
  /// Meetings and messages, which are the same in both programs; `sequence` is a step's round.
  void set_meetings(Handlers& on, bool forward_only);
  void exchange(const Instruction& i, uint64_t round, bool forward_only);
  void message(const Instruction& i, std::byte* memory, uint64_t round, const std::function<void()>& begun);
  /// Tells what this rank is about to do; what is returned hears whether the others do the same, and throws if not.
  std::function<void()> call_roll(const Instruction& i, bool forward_only);
  std::span<const at::Tensor> data_of(const Instruction& i, bool forward_only) const;
  void load(const Instruction& i, const std::vector<at::Tensor>& batch, bool forward_only);
  void fold(const Instruction& i);
  void norm(const Instruction& i);
  void vote();
  void update(const Instruction& i);
  bool owns(int lane) const;
  at::Tensor whole_output();
  int64_t exchanged_bytes_of(const Instruction& i) const;
  Range owned(int unit) const { return places_.slices[unit][at_.data % reduce_shards_of(p_.options)]; }
  /// Where float 0 of the unit's reduced gradient would lie, from the buffer that holds it or a slice of it.
  const float* gradient(int buffer) const {
    return p_.memory.floats(buffer) - p_.program().buffers[buffer].range.begin;
  }
  /// One rank of a replica speaks for it: the last stage's, of the first columns.
  bool reports() const { return at_.pipeline == last_stage() && at_.tensor == 0; }
  int last_stage() const { return places_.stage.back(); }
  Deadline deadline() const { return p_.context.clock.after(timeout_); }
  bool counts_loss(const Instruction& i) const { return !i.again && p_.shape.blocks[i.block].column == 0 && is_end(i); }
  bool is_end(const Instruction& i) const {
    return p_.shape.blocks[i.block].layer + 1 == p_.shape.layers() &&
           i.segment + 1 == static_cast<int>(p_.shape.blocks[i.block].segments.size());
  }

  const MeshParts p_;
  const Duration timeout_;
  const Coordinates at_;
  const Program& forward_program_;
  const Transfers transfers_, forward_transfers_;
  const MeshPlaces& places_;
  Arena scratch_;                       // of reduces
  std::span<std::byte> queue_scratch_;  // the part of the queue that is being prepared
  Channel channel_;
  RollCall roll_call_, forward_roll_call_;
  PlanRunner runner_, forward_runner_;
  std::unordered_map<uint32_t, std::unique_ptr<SumPull>> sums_;
  std::unordered_map<uint32_t, std::unique_ptr<CopyPull>> copies_, forward_copies_;
  std::set<uint32_t> refreshes_;            // gathers behind the unit's Update
  std::set<std::pair<int, int>> gathered_;  // (unit, group) of gathers before it
  std::set<uint32_t> repeats_;              // gathers that wait for nobody: one of the step has waited before
  std::unordered_map<uint32_t, std::unique_ptr<ColumnExchange>> exchanges_, forward_exchanges_;
  std::unordered_map<int, std::vector<at::Tensor>> data_, forward_data_;  // by the first data buffer of a slot
  std::unordered_map<int, int> slot_of_, forward_slot_of_;                // data buffer -> first of its slot
  std::vector<std::vector<Range>> chunks_;                                // by unit, of my slice; those that count
  std::unique_ptr<Executor> executor_, forward_executor_;

  StepRequest request_;
  uint64_t round_ = 0;
  Vote mine_, all_;
  std::mutex squares_mutex_;
  std::vector<ExactSum> unit_squares_;
  StepScalars scalars_;
  Pass forward_pass_;
  const std::vector<at::Tensor>* forward_batch_ = nullptr;
  std::optional<Evaluated> evaluated_;
  std::map<int, at::Tensor> outputs_;  // by column, of the forward under way
  uint64_t evaluations_ = 0;
};

/// Makes what an instruction runs with; all addresses are known from here on.
void MeshEngine::prepare(const Instruction& i, bool forward_only) {
  const auto memory = [&](int b) { return forward_only ? p_.memory.of_forward(b) : p_.memory.of(b); };
  const Plan& plan = forward_only ? p_.forward_plan : p_.plan;
  switch (i.op) {
    case Op::kReduce: {
      std::vector<float*> levels;
      const bool whole = !i.writes.empty() && p_.program().buffers[i.writes[0]].partial >= 0;
      for (int b : i.writes) levels.push_back(p_.memory.floats(b) + (whole ? owned(i.block).begin : 0));
      sums_[i.id] = std::make_unique<SumPull>(transfers_.sum(i), p_.transport, p_.memory.window(), std::move(levels),
                                              queue_scratch_);
      break;
    }
    case Op::kGather: {
      std::vector<std::byte*> targets;
      for (int b : i.writes) targets.push_back(memory(b));
      CopyTransfer transfer = (forward_only ? forward_transfers_ : transfers_).copy(i);
      if (transfer.updated) refreshes_.insert(i.id);
      if (!forward_only && !transfer.updated && !gathered_.insert({i.block, i.group}).second &&
          reaches_all(p_.transport))
        repeats_.insert(i.id);
      (forward_only ? forward_copies_ : copies_)[i.id] =
          std::make_unique<CopyPull>(std::move(transfer), p_.transport, p_.memory.window(), std::move(targets));
      break;
    }
    case Op::kExchange:
      (forward_only ? forward_exchanges_ : exchanges_)[i.id] =
          std::make_unique<ColumnExchange>(i.id, plan.groups[i.group], p_.shape.columns, p_.transport);
      break;
    case Op::kLoad: {
      auto& tensors = (forward_only ? forward_data_ : data_)[i.writes[0]];
      if (!tensors.empty()) break;
      for (size_t d = 0; d < p_.model.data.size(); ++d) {
        const Border& border = p_.model.data[d];
        tensors.push_back(at::from_blob(memory(i.writes[d]), border.dims, at::TensorOptions().dtype(border.type)));
        (forward_only ? forward_slot_of_ : slot_of_)[i.writes[d]] = i.writes[0];
      }
      break;
    }
    default:
      break;
  }
}

void MeshEngine::find_chunks() {
  chunks_.resize(p_.shape.blocks.size());
  for (size_t u = 0; u < p_.shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (places_.home(p_.shape, unit) != Coordinates{0, at_.tensor, at_.pipeline}) continue;
    const auto& parameters = p_.shape.blocks[u].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!p_.updater.counts(unit, i)) continue;
      for (const Range& chunk : chunks_of({{parameters[i].offset, parameters[i].offset + parameters[i].size}}))
        if (owned(unit).contains(chunk.begin)) chunks_[u].push_back(chunk);
    }
  }
}

/// Copies of shared parameters are refreshed behind every Update; the first ones are made here.
void MeshEngine::make_copies() {
  for (uint32_t id : refreshes_) copies_.at(id)->run(0, deadline());
}

Handlers MeshEngine::handlers() {
  Handlers on;
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad,
      [this](const Instruction& i, uint64_t) { load(i, p_.loader.next(request_.step, i.lane, i.micro), false); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    runner_.forward(i, pass_of(p_.job.train.seed, request_.step, i.lane, i.micro), data_of(i, false));
    if (!counts_loss(i)) return;
    const Loss loss = runner_.loss(i);
    mine_.loss.add(loss.sum);
    mine_.targets.add(loss.count);
  });
  set(Op::kBackward, [this](const Instruction& i, uint64_t) {
    runner_.backward(i, pass_of(p_.job.train.seed, request_.step, i.lane, i.micro), data_of(i, false));
  });
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kReduce,
      [this](const Instruction& i, uint64_t round) { sums_.at(i.id)->run(round, deadline(), call_roll(i, false)); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kVote, [this](const Instruction& i, uint64_t) {
    call_roll(i, false)();
    vote();
  });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t) { update(i); });
  set_meetings(on, false);
  return on;
}

Handlers MeshEngine::forward_handlers() {
  Handlers on;
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { load(i, *forward_batch_, true); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    forward_runner_.forward(i, forward_pass_, data_of(i, true));
    const int column = p_.shape.blocks[i.block].column;
    if (at::Tensor output = forward_runner_.output(i, p_.model.output); output.defined()) outputs_[column] = output;
    if (is_end(i) && column == 0) evaluated_->loss = forward_runner_.loss(i);
  });
  set_meetings(on, true);
  return on;
}

void MeshEngine::set_meetings(Handlers& on, bool forward_only) {
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kGather, [this, forward_only](const Instruction& i, uint64_t round) {
    // Round r reads what r updates have left; behind its own Update, one more.
    const bool updated = !forward_only && refreshes_.contains(i.id);
    std::function<void()> hear = call_roll(i, forward_only);
    if (!forward_only && repeats_.contains(i.id)) hear = {};  // the next one on its way does
    (forward_only ? forward_copies_ : copies_).at(i.id)->run(updated ? round + 1 : round, deadline(), hear);
  });
  set(Op::kExchange, [this, forward_only](const Instruction& i, uint64_t round) { exchange(i, round, forward_only); });
  const auto memory = [this, forward_only](int b) { return forward_only ? p_.memory.of_forward(b) : p_.memory.of(b); };
  const auto tier = [this, memory, forward_only](const Instruction& i, uint64_t) {
    const auto& buffers = forward_only ? forward_program_.buffers : p_.program().buffers;
    for (size_t k = 0; k < i.reads.size(); ++k) {
      const bool fetches = i.op == Op::kFetch;
      const auto bytes = static_cast<size_t>(buffers[fetches ? i.reads[k] : i.writes[k]].bytes);
      if (fetches) {
        p_.memory.fetch(memory(i.reads[k]), {memory(i.writes[k]), bytes});
      } else {
        p_.memory.evict(memory(i.writes[k]), {memory(i.reads[k]), bytes});
      }
    }
  };
  set(Op::kFetch, tier);
  set(Op::kEvict, tier);
  const auto travel = [this, forward_only](const Instruction& i, uint64_t round) {
    const int b = i.op == Op::kSend ? i.reads[0] : i.writes[0];
    message(i, forward_only ? p_.memory.of_forward(b) : p_.memory.of(b), round, call_roll(i, forward_only));
  };
  set(Op::kSend, travel);
  set(Op::kRecv, travel);
}

void MeshEngine::exchange(const Instruction& i, uint64_t round, bool forward_only) {
  const auto memory = [&](int b) { return forward_only ? p_.memory.of_forward(b) : p_.memory.of(b); };
  const auto& buffers = forward_only ? forward_program_.buffers : p_.program().buffers;
  ColumnExchange& exchange = *(forward_only ? forward_exchanges_ : exchanges_).at(i.id);
  const std::function<void()> hear = call_roll(i, forward_only);
  const int64_t bytes = exchanged_bytes_of(i);
  if (i.exchange == Exchange::kGather) {
    std::vector<const std::byte*> parts;
    for (int b : i.flow.in) parts.push_back(memory(b));
    return exchange.gather(parts, static_cast<size_t>(bytes), memory(i.flow.out[0]), round, deadline(), hear);
  }
  std::vector<float*> sums, parts;
  for (int b : i.flow.in) sums.push_back(reinterpret_cast<float*>(memory(b)));
  for (int b : i.flow.out) parts.push_back(reinterpret_cast<float*>(memory(b)));
  std::span<std::byte> scratch;
  if (i.flow.work >= 0) scratch = {memory(i.flow.work), static_cast<size_t>(buffers[i.flow.work].bytes)};
  exchange.scatter(sums, bytes / static_cast<int64_t>(sizeof(float)), parts, round, deadline(), scratch, hear);
}

std::function<void()> MeshEngine::call_roll(const Instruction& i, bool forward_only) {
  RollCall& roll = forward_only ? forward_roll_call_ : roll_call_;
  roll.tell(i, static_cast<uint64_t>(request_.step) + 1, deadline());
  return [this, &roll, &i] { roll.hear(i, deadline()); };
}

void MeshEngine::message(const Instruction& i, std::byte* memory, uint64_t round, const std::function<void()>& begun) {
  named(to_string(i), round, [&] {
    Posted posted(p_.transport);
    const std::span<std::byte> bytes(memory, static_cast<size_t>(i.bytes));
    const Tag tag{i.id, 0, round};
    if (i.op == Op::kSend) {
      posted.send(i.peer, tag, bytes);
    } else {
      posted.recv(i.peer, tag, bytes);
    }
    begun();
    posted.wait_all(deadline());
  });
}

/// Of a column's part (gather), or of its partial sum (scatter).
int64_t MeshEngine::exchanged_bytes_of(const Instruction& i) const {
  const SegmentShape& segment = p_.shape.blocks[i.block].segments[i.segment];
  for (size_t o = 0; o < segment.outputs.size(); ++o) {
    const OutputShape& out = segment.outputs[o];
    if (static_cast<int>(o) != i.output) continue;
    if (i.part != Part::kInput) return out.bytes;
    // A gradient goes the other way: partial sums of what was gathered, or parts of what was scattered.
    return i.exchange == Exchange::kScatter ? out.read_bytes / out.read_element_bytes * int64_t{sizeof(float)}
                                            : out.read_bytes;
  }
  TUTTI_CHECK(false, "{} has no output {}", to_string(i), i.output);
}

/// A segment that reads no data gets none.
std::span<const at::Tensor> MeshEngine::data_of(const Instruction& i, bool forward_only) const {
  const auto& slots = forward_only ? forward_slot_of_ : slot_of_;
  for (int b : i.flow.in)
    if (const auto it = slots.find(b); it != slots.end()) return (forward_only ? forward_data_ : data_).at(it->second);
  return {};
}

void MeshEngine::load(const Instruction& i, const std::vector<at::Tensor>& batch, bool forward_only) {
  auto& tensors = (forward_only ? forward_data_ : data_).at(i.writes[0]);
  for (size_t d = 0; d < batch.size(); ++d)
    std::memcpy(tensors[d].data_ptr(), batch[d].const_data_ptr(), static_cast<size_t>(batch[d].nbytes()));
}

void MeshEngine::fold(const Instruction& i) {
  for (const Add& add : i.adds) {
    const Range range = p_.program().buffers[add.into].range;
    add_into(p_.memory.floats(add.into), p_.memory.floats(add.from),
             range.empty() ? p_.shape.blocks[i.block].gradient_size : range.size());
  }
}

void MeshEngine::norm(const Instruction& i) {
  const float* values = gradient(i.reads[0]);
  const std::lock_guard lock(squares_mutex_);  // sums over stages have a queue of their own
  for (const Range& chunk : chunks_[i.block]) {
    const double squares = sum_squares(values + chunk.begin, chunk.size());
    mine_.squares.add(squares);
    if (p_.job.train.clip_by == "unit") unit_squares_[i.block].add(squares);
  }
}

/// The commit: after it every rank knows the same norm, loss and decision.
void MeshEngine::vote() {
  mine_.stop = p_.context.control.stop.load() != 0 ? 1 : 0;
  all_ = vote_of(mine_, channel_);
  if (!all_.finite()) throw NonFinite();
  scalars_ = scalars_of(p_.job.train, request_, all_);
  if (p_.job.train.clip_by == "unit") share_unit_squares(unit_squares_, channel_);
}

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

/// What this rank owns of the unit.
void MeshEngine::update(const Instruction& i) {
  const int unit = i.block;
  const float* values = gradient(i.reads[1]);
  StepScalars scalars = scalars_;
  if (p_.job.train.clip_by == "unit") scalars.gradient_scale *= unit_clip(p_.job.train, unit_squares_[unit], all_);
  const auto& parameters = p_.shape.blocks[unit].parameters;
  const Held& held = p_.units.held(unit);
  const UpdatedUnit units(p_.memory.floats(i.reads[2]) - held.parameters.begin, p_.memory.floats(i.reads[3]),
                          held.moments, p_.options.optimizer_slots);
  const int64_t proposals = int64_t{p_.options.batch.lanes} * p_.options.batch.micro_batches;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Range part{std::max(held.moments.begin, parameters[p].offset),
                     std::min(held.moments.end, parameters[p].offset + parameters[p].size)};
    if (part.empty()) continue;
    const GradientPiece piece{part.begin, part.size(), values + part.begin};
    p_.updater.update(units, unit, p, std::span(&piece, 1), scalars, proposals);
  }
}

/// Where slices are gathered, all data ranks must do it together: then all go through every lane.
bool MeshEngine::computes(int lane) const {
  if (p_.options.zero == 3 && p_.options.mesh.shards > 1) return true;
  return owns(lane);
}

bool MeshEngine::owns(int lane) const {
  const std::vector<int> lanes = lanes_of(p_.options.sums(), at_.data);
  return std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
}

std::optional<Evaluated> MeshEngine::forward(const Pass& pass, const std::vector<at::Tensor>& data) {
  forward_pass_ = pass;
  forward_batch_ = &data;
  evaluated_.emplace();
  evaluated_->data = data;
  outputs_.clear();
  try {
    forward_executor_->run(round_);
  } catch (const CommError&) {
    forward_roll_call_.rethrow();
    throw;
  }
  if (p_.model.task != Task::kLoss && at_.pipeline == last_stage()) evaluated_->output = whole_output();
  if (!reports() || !owns(pass.lane)) return std::nullopt;
  return evaluated_;
}

/// What evaluation reads: where columns have parts of it, those of all tensor ranks come to the first.
at::Tensor MeshEngine::whole_output() {
  if (!p_.model.output_sliced) return outputs_.contains(0) ? outputs_.at(0) : at::Tensor();
  const uint64_t sequence = evaluations_++;
  const auto bytes = [](const at::Tensor& t) {
    return std::span(static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(t.nbytes()));
  };
  const Mesh& mesh = p_.options.mesh;
  named("output of an evaluation", sequence, [&] {
    Posted posted(p_.transport);
    for (int t = 1; t < mesh.tensor; ++t)
      for (int64_t c = places_.columns[t].begin; c < places_.columns[t].end; ++c) {
        const int column = static_cast<int>(c);
        const Tag tag{kOutputId, static_cast<uint32_t>(column), sequence};
        if (at_.tensor == t) posted.send(mesh.rank({at_.data, 0, at_.pipeline}), tag, bytes(outputs_.at(column)));
        if (at_.tensor != 0) continue;
        outputs_[column] = at::empty_like(outputs_.at(0));
        posted.recv(mesh.rank({at_.data, t, at_.pipeline}), tag, bytes(outputs_.at(column)));
      }
    posted.wait_all(deadline());
  });
  if (at_.tensor != 0) return {};
  std::vector<at::Tensor> parts;
  for (const auto& [column, part] : outputs_) parts.push_back(part);
  return at::cat(parts, -1);
}

int64_t MeshEngine::output_width() {
  if (p_.model.task == Task::kLoss) return 0;
  for (const Block& block : p_.model.blocks)
    for (const auto& segment : block.segments)
      for (const Border& border : segment->outputs())
        if (border.name == p_.model.output)
          return border.dims.back() * (p_.model.output_sliced ? p_.model.columns : 1);
  throw Error(fmt::format("the model has no border {}", p_.model.output));
}

}  // namespace

std::unique_ptr<Engine> make_mesh_engine(const MeshParts& parts) { return std::make_unique<MeshEngine>(parts); }

bool reaches_all(const Transport& transport) {
  for (int r = 0; r < transport.size(); ++r)
    if (transport.window_of(r).empty()) return false;
  return true;
}

int64_t message_bytes(const Plan& plan, const ModelShape& shape, const MeshOptions& options, int rank, bool windows) {
  const Transfers transfers(plan, shape, options);
  int64_t bytes = 0;
  for (const Queue& queue : plan.programs[rank].queues) bytes += queue_message_bytes(transfers, queue, rank, windows);
  return bytes;
}

}  // namespace tutti
