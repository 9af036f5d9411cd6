// A whole job without torch: plan, executor, channels and sums of all ranks in one process, under
// the test scheduler and over the simulated network. The model is arithmetic on floats whose
// gradients depend on the parameters, the sample and the activation, so that any sum in another
// order, any stale or half-written read shows in the parameters' bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/exact_sum.h"
#include "comm/collectives.h"
#include "comm/fold.h"
#include "comm/lending.h"
#include "comm/pulls.h"
#include "exec/executor.h"
#include "plan/check/prove.h"
#include "plan/ir/plan_memory.h"
#include "plan/make/plan_mesh.h"
#include "support/sim_transport.h"

namespace tutti::test {

struct SimJob {
  int ranks = 3, lanes = 5, micro_batches = 2;
  uint64_t steps = 3;
  bool overlap = true;
  bool windows = false;
  bool root = false;  ///< rank 0 makes all sums
  /// of the layout's chances: turns, delays, how long work takes. It is not part of the job.
  uint64_t seed = 0;
  std::vector<Fault> faults;
  int cut_rank = -1;
  Time cut_at;
  Duration timeout = std::chrono::seconds(30);
};

struct SimOutcome {
  std::vector<std::string> log;
  uint64_t fingerprint = 0, missed_notifies = 0;
  std::vector<std::string> states;  ///< by rank: the hash of its parameters; empty if it failed
  std::vector<std::string> errors;  ///< by rank: empty if it did not fail
  Time end;
  bool operator==(const SimOutcome&) const = default;
};

/// Four blocks: one of several chunks, one with two segments, one without parameters, one small.
inline ModelShape sim_model() {
  ModelShape model;
  model.data_bytes = {8};
  const std::vector<std::vector<int64_t>> sizes{{9000, 40}, {700, 33}, {}, {5}};
  for (size_t b = 0; b < sizes.size(); ++b) {
    BlockShape block;
    block.name = fmt::format("block {}", b);
    block.layer = static_cast<int>(b);
    block.segments.resize(b == 1 ? 2 : 1);
    if (b == 0) block.segments[0].inputs = {{.data = true, .index = 0}};
    for (size_t p = 0; p < sizes[b].size(); ++p) {
      ParameterShape parameter;
      parameter.name = fmt::format("{}.{}", b, p);
      parameter.dims = {sizes[b][p]};
      parameter.offset = block.unit_size;
      parameter.size = sizes[b][p];
      block.unit_size = align_up(block.unit_size + sizes[b][p], kAlign);
      block.parameters.push_back(parameter);
    }
    block.gradient_size = block.unit_size;
    model.blocks.push_back(block);
  }
  return model;
}

/// One rank: what the handlers of its program work on.
class SimRank {
 public:
  SimRank(const SimJob& job, const ModelShape& model, const Plan& plan, TestScheduler& scheduler,
          const Cancel& cancel, std::unique_ptr<Transport> transport)
      : job_(job),
        model_(model),
        plan_(plan),
        program_(plan.programs[transport->rank()]),
        scheduler_(scheduler),
        cancel_(cancel),
        transport_(std::move(transport)),
        channel_(*transport_, scheduler, {16, 31}, job.timeout),
        own_memory_(transport_->window().empty() ? window_bytes(program_) / 4 : 0),
        arena_(own_memory_.empty() ? transport_->window()
                                   : std::as_writable_bytes(std::span(own_memory_))),
        lending_(plan, rank(), *transport_) {
    for (const BlockShape& block : model.blocks) {
      parameters_.emplace_back(block.unit_size);
      for (int64_t i = 0; i < block.unit_size; ++i)
        parameters_.back()[i] = 0.01f * static_cast<float>(i % 17);
    }
    for (const Buffer& buffer : program_.buffers) {
      private_.emplace_back(
          buffer.kind == BufferKind::kGradient && !buffer.window ? buffer.bytes / 4 : 0);
    }
    for (const Queue& queue : program_.queues)
      for (const Instruction& i : queue.instructions) prepare(i);
  }

  void train() {
    const auto hook = program_.queues.size() > 1
                          ? scheduler_.guest(fmt::format("rank {} data", rank()))
                          : std::function<void()>();
    Executor executor(program_, handlers(), scheduler_, &cancel_, nullptr, hook);
    for (uint64_t step = 0; step < job_.steps; ++step) {
      mine_ = {};
      executor.run(step);
    }
    channel_.barrier();  // nobody leaves while others still read
  }

  std::string state() const {
    Sha256 hash;
    for (const auto& unit : parameters_) hash.add(std::as_bytes(std::span(unit)));
    return hex(hash.finish());
  }
  int rank() const { return transport_->rank(); }

 private:
  struct Vote {
    ExactSum squares, activations;
  };

  float* gradient(int buffer) {
    const Buffer& b = program_.buffers[buffer];
    return b.window ? reinterpret_cast<float*>(arena_.data() + b.window_offset)
                    : private_[buffer].data();
  }

  void prepare(const Instruction& i) {
    const TransferName name{i.id, i.parcel, to_string(i)};
    if (i.op == Op::kGather) {
      copies_[i.id] = std::make_unique<CopyPull>(
          plan_.copies[i.transfer], name, *transport_, arena_,
          [this](int b) { return reinterpret_cast<std::byte*>(gradient(b)); });
    }
    if (i.op != Op::kReduce) return;
    const SumTransfer& transfer = plan_.sums[i.transfer];
    std::vector<std::vector<float*>> levels;
    for (const UnitSum& unit : transfer.units)
      levels.push_back(levels_of(plan_, i, unit, rank(), [this](int b) { return gradient(b); }));
    const bool windows = !transport_->window().empty();
    auto& scratch = scratch_[i.id];
    scratch.resize(static_cast<size_t>(SumPull::scratch_bytes(transfer, rank(), windows)));
    sums_[i.id] = make_sum_pull(transfer, name, *transport_, arena_, std::move(levels), scratch);
  }

  /// Work takes a while, drawn from the seed: mostly short, at times longer than a peer's whole
  /// step. Meanwhile others run.
  void work(const Instruction& i, uint64_t step) {
    scheduler_.record(fmt::format("{} step {}", to_string(i), step));
    const PhiloxKey key{job_.seed, Purpose::kTest, 2, static_cast<uint64_t>(rank())};
    const uint64_t draw = philox_below(key, works_++, 16);
    scheduler_.sleep(Duration(draw == 0 ? 1'000'000 : 500 + 500 * draw), &cancel_);
  }

  Handlers handlers() {
    Handlers on;
    const auto set = [&](Op op, const std::function<void(const Instruction&, uint64_t)>& body) {
      on[static_cast<int>(op)] = [this, op, body](const Instruction& i, uint64_t step) {
        const bool computes = op == Op::kForward || op == Op::kBackward || op == Op::kUpdate;
        computes ? work(i, step) : scheduler_.record(fmt::format("{} step {}", to_string(i), step));
        body(i, step);
      };
    };
    const auto deadline = [this] { return scheduler_.after(job_.timeout); };
    set(Op::kLoad, [this](const Instruction& i, uint64_t step) {
      const Batch batch{job_.lanes, job_.micro_batches, 1};
      sample_ =
          static_cast<uint64_t>(first_sample(batch, static_cast<int64_t>(step), i.lane, i.micro));
      activation_ = philox_uniform({1, Purpose::kData, sample_, 0}, 0);
    });
    set(Op::kForward, [this](const Instruction& i, uint64_t) {
      for (float p : parameters_[i.block]) activation_ += 0.001f * p;
      if (i.block + 1 == static_cast<int>(model_.blocks.size())) mine_.activations.add(activation_);
    });
    set(Op::kBackward, [this](const Instruction& i, uint64_t) { backward(i); });
    set(Op::kFold, [this](const Instruction& i, uint64_t) {
      for (const Add& add : i.adds)
        add_into(gradient(add.into), gradient(add.from), model_.blocks[i.block].gradient_size);
    });
    set(Op::kAcquire, [this, deadline](const Instruction& i, uint64_t step) {
      lending_.acquire(i.parcel, step, deadline());
    });
    set(Op::kReduce, [this, deadline](const Instruction& i, uint64_t step) {
      sums_.at(i.id)->run(step, deadline());
    });
    set(Op::kNorm, [this](const Instruction& i, uint64_t) {
      for (const Operand* sum : operands_of(i, OperandRole::kSum))
        for (const ParameterShape& p : model_.blocks[sum->unit].parameters) {
          const Range mine = overlap(sum->range, {p.offset, p.offset + p.size});
          for (int64_t at = mine.begin; at < mine.end; ++at) {
            const double g = gradient(sum->buffer)[at];
            mine_.squares.add(g * g);
          }
        }
    });
    set(Op::kGather, [this, deadline](const Instruction& i, uint64_t step) {
      copies_.at(i.id)->run(step, deadline());
    });
    set(Op::kVote, [this](const Instruction&, uint64_t) {
      std::vector<Vote> votes(job_.ranks);
      channel_.all_gather(std::as_bytes(std::span(&mine_, 1)),
                          std::as_writable_bytes(std::span(votes)));
      Vote all;
      for (const Vote& vote : votes) {
        all.squares.merge(vote.squares);
        all.activations.merge(vote.activations);
      }
      scale_ = static_cast<float>(
          0.1 / (1 + std::sqrt(all.squares.value()) + std::abs(all.activations.value())));
      scheduler_.record(fmt::format("the vote says {:a}", scale_));
    });
    set(Op::kUpdate, [this](const Instruction& i, uint64_t) { update(i); });
    set(Op::kRelease,
        [this](const Instruction& i, uint64_t step) { lending_.release(i.parcel, step); });
    return on;
  }

  void backward(const Instruction& i) {
    if (i.flow.gradients.empty()) return;
    const BlockShape& block = model_.blocks[i.block];
    float* const out = gradient(i.flow.gradients[0].buffer);
    for (size_t p = 0; p < block.parameters.size(); ++p) {
      if (p % block.segments.size() != static_cast<size_t>(i.segment)) continue;
      const ParameterShape& parameter = block.parameters[p];
      const PhiloxStream noise =
          philox_stream({2, Purpose::kData, sample_, hash64(parameter.name)});
      for (int64_t k = 0; k < parameter.size; ++k) {
        const auto words = philox_raw(
            {noise.counter[0], noise.counter[1], static_cast<uint32_t>(k), 0}, noise.key);
        const float draw = std::ldexp(static_cast<float>(words[0] >> 8) * 0x1p-23f - 1,
                                      static_cast<int>(words[1] % 9));
        out[parameter.offset + k] =
            draw * (activation_ + parameters_[i.block][parameter.offset + k]);
      }
    }
  }

  /// Reads the sum where the plan says: here, or in the windows of those who made slices of it.
  void update(const Instruction& i) {
    for (const Operand* part : operands_of(i, OperandRole::kGradient)) {
      const int owner = part->rank < 0 ? rank() : part->rank;
      const std::span<const std::byte> memory =
          owner == rank() ? arena_ : transport_->window_of(owner);
      const auto* sum = reinterpret_cast<const float*>(
          memory.data() + plan_.programs[owner].buffers[part->buffer].window_offset);
      for (const ParameterShape& p : model_.blocks[i.block].parameters) {
        const Range mine = overlap(part->range, {p.offset, p.offset + p.size});
        for (int64_t k = mine.begin; k < mine.end; ++k) parameters_[i.block][k] -= scale_ * sum[k];
      }
    }
  }

  const SimJob& job_;
  const ModelShape& model_;
  const Plan& plan_;
  const Program& program_;
  TestScheduler& scheduler_;
  const Cancel& cancel_;
  std::unique_ptr<Transport> transport_;
  Channel channel_;
  std::vector<float> own_memory_;
  std::span<std::byte> arena_;
  std::vector<std::vector<float>> parameters_, private_;
  Lending lending_;
  std::map<uint32_t, std::vector<std::byte>> scratch_;  // by instruction, as are the transfers
  std::map<uint32_t, std::unique_ptr<SumPull>> sums_;
  std::map<uint32_t, std::unique_ptr<CopyPull>> copies_;
  uint64_t sample_ = 0, works_ = 0;
  float activation_ = 0, scale_ = 0;
  Vote mine_;
};

inline SimOutcome run_job(const SimJob& job) {
  const ModelShape model = sim_model();
  MeshOptions mesh;
  mesh.mesh.data = job.ranks;
  mesh.batch = {job.lanes, job.micro_batches, 1};
  mesh.overlap = job.overlap;
  mesh.windows = job.windows;
  if (job.root) mesh.fold = FoldKind::kRoot;
  mesh.bucket_floats = 700;
  const Plan plan = plan_mesh(model, mesh);
  EXPECT_EQ(plan.sums.size(), 2u);  // the last two units merged, the first alone
  for (const std::string& fault : prove(plan, model)) ADD_FAILURE() << fault;

  TestScheduler scheduler(job.seed);
  Cancel cancel;
  SimOptions options{.ranks = job.ranks, .seed = job.seed, .faults = job.faults};
  options.epoch.plan = plan_hash(plan);
  if (job.windows) {
    for (const Program& program : plan.programs)
      options.window_bytes =
          std::max(options.window_bytes, static_cast<size_t>(window_bytes(program)));
  }
  SimNetwork network(scheduler, options, &cancel);
  if (job.cut_rank >= 0) network.cut(job.cut_rank, job.cut_at);

  SimOutcome outcome;
  outcome.states.resize(job.ranks);
  outcome.errors.resize(job.ranks);
  std::vector<std::unique_ptr<SimRank>> ranks;
  for (int r = 0; r < job.ranks; ++r) {
    ranks.push_back(
        std::make_unique<SimRank>(job, model, plan, scheduler, cancel, network.transport(r)));
    scheduler.spawn(fmt::format("rank {}", r), [&, r] {
      try {
        ranks[r]->train();
        outcome.states[r] = ranks[r]->state();
      } catch (const CommError& error) {
        outcome.errors[r] = error.what();
        scheduler.record(error.what());
        cancel.cancel(fmt::format("rank {} failed", r));  // as the launcher does
      }
    });
  }
  scheduler.run();
  outcome.log = scheduler.log();
  outcome.fingerprint = scheduler.fingerprint();
  outcome.missed_notifies = scheduler.missed_notifies();
  outcome.end = scheduler.now();
  return outcome;
}

}  // namespace tutti::test
