// A step on the host's cores, read aloud: the plan's instructions are walked by the executor; each handler below says
// what one of them means.
#include <optional>

#include "base/error.h"
#include "comm/fold.h"
#include "engine/channels.h"
#include "engine/engine.h"
#include "engine/host/commit.h"
#include "exec/executor.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

class HostEngine final : public Engine {
 public:
  explicit HostEngine(const EngineParts& parts)
      : p_(parts),
        timeout_(timeout_of(parts.job)),
        channel_(parts.transport, parts.context.clock, kDataChannel, timeout_),
        commit_(parts.job.train, parts.context, channel_, parts.shape.blocks.size()) {
    place_gradients();
    make_reductions();
    std::vector<float*> parameters;
    for (size_t u = 0; u < p_.shape.blocks.size(); ++u) parameters.push_back(p_.units.parameters(static_cast<int>(u)));
    RunnerOptions options;
    options.consume = true;
    runner_ = std::make_unique<ModelRunner>(p_.model, p_.shape, parameters, p_.accounts, options);
    placement_ = std::make_unique<HostPlacement>(p_.model, *runner_, p_.batch, p_.lanes);
    const int threads = static_cast<int>(p_.job.numerics.threads);
    executor_ = std::make_unique<Executor>(p_.program(), handlers(), p_.context.clock, &p_.context.control.cancel,
                                           &p_.trace, [threads] { prepare_compute_thread(threads); });
  }

  StepVerdict run(const StepRequest& request) override {
    step_ = request.step;
    return commit_.run(request, [this] { executor_->run(round_++); });
  }
  Placement& placement() override { return *placement_; }
  uint64_t order_digest() const override { return p_.loader.digest(); }

 private:
  struct Chunk {
    Range range;
    int unit;
  };

  void place_gradients();
  void make_reductions();
  Handlers handlers();
  std::vector<Chunk> chunks_to_norm(const Bucket& bucket, Range slice) const;
  void fold(const Instruction& instruction);
  void norm(const Instruction& instruction);
  void update(const Instruction& instruction, uint64_t round);
  Pass pass_of(const Instruction& i) const { return placement_->pass_of(p_.job.train.seed, step_, i.lane, i.micro); }

  const EngineParts p_;
  const Duration timeout_;
  Channel channel_;
  HostCommit commit_;
  std::unique_ptr<Arena> window_arena_;
  std::span<std::byte> window_;
  std::optional<GradientMemory> gradients_;  // made once the window is there
  std::vector<ReductionSpec> specs_;
  std::vector<std::unique_ptr<Reduction>> reductions_;
  std::vector<std::vector<Chunk>> my_chunks_;  // by bucket, of my slice; of the parameters that count in norms
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<HostPlacement> placement_;
  std::unique_ptr<Executor> executor_;

  int64_t step_ = 0;
  uint64_t round_ = 0;  // steps run so far: the transports count from 0
  const std::vector<at::Tensor>* micro_batch_ = nullptr;
};

/// In the transport's window where it has one, so that others read partial sums there; what nobody reads lies apart.
void HostEngine::place_gradients() {
  const size_t bytes = p_.transport.window().size();
  const auto wanted = static_cast<size_t>(window_bytes_of(p_.plan, p_.context.rank, p_.places));
  if (bytes > 0) {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, p_.transport.window(), p_.accounts);
  } else {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, wanted, p_.accounts);
  }
  window_ = window_arena_->take(wanted);
  gradients_.emplace(p_.program(), p_.places, reinterpret_cast<float*>(window_.data()), p_.accounts);
}

void HostEngine::make_reductions() {
  for (size_t b = 0; b < p_.plan.buckets.size(); ++b) {
    ReductionSpec spec = reduction_spec(p_.plan, p_.shape, p_.places, static_cast<int>(b), p_.job);
    my_chunks_.push_back(chunks_to_norm(p_.plan.buckets[b], spec.slices[p_.context.rank]));
    reductions_.push_back(make_reduction(spec, p_.transport, window_));
    p_.accounts.add(BufferKind::kMessage, reductions_.back()->scratch_bytes());
    specs_.push_back(std::move(spec));
  }
}

/// The chunks in `slice` of the parameters that count in norms.
std::vector<HostEngine::Chunk> HostEngine::chunks_to_norm(const Bucket& bucket, Range slice) const {
  std::vector<Chunk> chunks;
  for (size_t k = 0; k < bucket.units.size(); ++k) {
    const int unit = bucket.units[k];
    const auto& parameters = p_.shape.blocks[unit].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!p_.updater.counts(unit, i)) continue;
      const int64_t begin = bucket.unit_offset[k] + parameters[i].offset;
      for (const Range& chunk : chunks_of({{begin, begin + parameters[i].size}}))
        if (slice.contains(chunk.begin)) chunks.push_back({chunk, unit});
    }
  }
  return chunks;
}

Handlers HostEngine::handlers() {
  Handlers on;
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  auto deadline = [this] { return p_.context.clock.after(timeout_); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { micro_batch_ = &p_.loader.next(step_, i.lane, i.micro); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    runner_->forward(i.block, i.segment, pass_of(i), *micro_batch_);
    if (is_last(p_.model, i)) commit_.count_loss(runner_->loss());
  });
  set(Op::kBackward, [this](const Instruction& i, uint64_t) {
    runner_->backward(i.block, i.segment, pass_of(i), *micro_batch_, gradients_->of_backward(i));
  });
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kAcquire, [this, deadline](const Instruction& i, uint64_t round) {
    if (round > 0) reductions_[i.bucket]->await_release(round - 1, deadline());
  });
  set(Op::kReduce,
      [this, deadline](const Instruction& i, uint64_t round) { reductions_[i.bucket]->reduce(round, deadline()); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kGather,
      [this, deadline](const Instruction& i, uint64_t round) { reductions_[i.bucket]->gather(round, deadline()); });
  set(Op::kVote, [this](const Instruction&, uint64_t) { commit_.vote(); });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t round) { update(i, round); });
  return on;
}

void HostEngine::fold(const Instruction& i) {
  for (const Add& add : i.adds)
    add_into(gradients_->of(add.into, i.block), gradients_->of(add.from, i.block),
             p_.shape.blocks[i.block].gradient_size);
}

void HostEngine::norm(const Instruction& i) {
  const float* slice = reductions_[i.bucket]->view(p_.context.rank);
  const int64_t begin = specs_[i.bucket].slices[p_.context.rank].begin;
  for (const auto& [chunk, unit] : my_chunks_[i.bucket])
    commit_.count_squares(unit, slice + (chunk.begin - begin), chunk.size());
}

/// Every parameter of the unit, slice by slice: gradients are read where their owner left them.
void HostEngine::update(const Instruction& i, uint64_t round) {
  const int unit = i.block, bucket = p_.places.bucket_of[unit];
  const ReductionSpec& spec = specs_[bucket];
  const int64_t base = p_.places.offset_in_bucket[unit];
  const StepScalars scalars = commit_.scalars(unit);
  const auto& parameters = p_.shape.blocks[unit].parameters;
  std::vector<GradientPiece> pieces;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t begin = base + parameters[p].offset, end = begin + parameters[p].size;
    pieces.clear();
    for (size_t s = 0; s < spec.slices.size(); ++s) {
      const Range part{std::max(begin, spec.slices[s].begin), std::min(end, spec.slices[s].end)};
      if (part.empty()) continue;
      pieces.push_back({part.begin - base, part.size(),
                        reductions_[bucket]->view(static_cast<int>(s)) + (part.begin - spec.slices[s].begin)});
    }
    p_.updater.update(p_.units, unit, p, pieces, scalars, int64_t{p_.batch.lanes} * p_.batch.micro_batches);
  }
  // Units are updated in the bucket's order: after the last one nobody here reads the bucket any more.
  if (p_.plan.buckets[bucket].units.back() == unit) reductions_[bucket]->release(round);
}

}  // namespace

std::unique_ptr<Engine> make_host_engine(const EngineParts& parts) { return std::make_unique<HostEngine>(parts); }

}  // namespace tutti
