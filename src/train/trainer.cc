// A step, and what is asked between steps. How one epoch follows another is in change_epoch.cc;
// what a step computes is the engine's (engine/engine.h).
#include "train/trainer.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "eval/evaluate.h"
#include "state/checkpoint.h"

namespace tutti {

Trainer::Trainer(const Job& job, const Model& model, RankContext& context,
                 const std::string& checkpoint, const OwnPartition& own, RankDevice* device,
                 const WrapTransport& wrap)
    : worker_(job, model, context, own, device),
      wrap_(wrap),
      membership_(first_epoch(context.size, context.rank, static_cast<int>(job.layout.hosts),
                              job.layout.address)),
      run_(std::make_unique<EpochRun>(worker_, job.layout, membership_, wrap_)) {
  worker_.state = run_->make_state(/*fresh=*/true);
  if (!checkpoint.empty()) {
    const Units& units = *worker_.state.units;
    worker_.progress =
        progress_from(job, load_checkpoint(checkpoint, units.entries(), units.pieces()));
    units.upload();
  }
  run_->begin();
}

Trainer::~Trainer() = default;

StepReport Trainer::step() {
  Clock& clock = worker_.context.clock;
  const Time begin = clock.now();
  const StepRequest request = request_after(worker_.job, worker_.progress);
  StepVerdict verdict;
  try {
    verdict = run_->engine().run(request);
  } catch (const CommError&) {
    left_ = true;
    worker_.context.failing();  // before others lose this rank
    run_->leave();
    throw;
  }
  if (!verdict.finite && !may_skip(worker_.progress.scale, worker_.job.numerics))
    explain_nonfinite(request);
  worker_.progress = next_progress(worker_.job, worker_.progress, verdict.finite);
  const double taken = std::chrono::duration<double>(clock.now() - begin).count();
  return {committed(), verdict.loss, verdict.gradient_norm, request.lr,
          taken,       verdict.stop, !verdict.finite};
}

Metrics Trainer::evaluate() {
  const int64_t most =
      worker_.job.train.eval_batches * worker_.batch.lanes * worker_.batch.micro_batch_size;
  const Dataset& records = *worker_.data.held_out;
  return tutti::evaluate(worker_.model, run_->engine(), records, std::min(most, records.size()),
                         worker_.batch, worker_.job.train.seed, committed(), run_->channel());
}

Metrics Trainer::evaluate_test() {
  const Dataset& records = *worker_.data.test;
  return tutti::evaluate(worker_.model, run_->engine(), records, records.size(), worker_.batch,
                         worker_.job.train.seed, committed(), run_->channel());
}

Judgement Trainer::watch(double value) {
  Judgement judgement =
      judge(worker_.job.train, worker_.progress.watched, value, worker_.progress.step);
  worker_.progress.watched = judgement.watched;
  return judgement;
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = worker_.order_digest + run_->engine().order_digest();
  std::vector<uint64_t> all(run_->context().size);
  run_->channel().all_gather(std::as_bytes(std::span(&mine, 1)),
                             std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

std::function<State()> Trainer::state_beside() {
  std::function<void()> copied = units().whole() ? run_->engine().copy_out() : nullptr;
  if (!copied) return nullptr;
  return [this, copied = std::move(copied), at = counters()] {
    copied();
    return units().state(at);
  };
}

bool Trainer::whole() const {
  for (size_t u = 0; u < shape().blocks.size(); ++u)
    if (units().held(static_cast<int>(u)).parameters != Range{0, shape().blocks[u].unit_size})
      return false;
  return true;
}

Collector& Trainer::state() {
  if (const std::function<void()> copied = run_->engine().copy_out()) copied();
  return run_->collector();
}

std::string Trainer::save(const std::string& folder, const std::string& job_toml) {
  return state().save(folder, counters(), job_toml);
}

std::string Trainer::agreed_hash() { return state().hash(counters()); }

void Trainer::explain_nonfinite(const StepRequest& request) {
  const RankContext& context = run_->context();
  LoaderOptions options = run_->loader_options();
  options.depth = 1;
  Loader loader(options, context.clock, &context.control.cancel);
  NonFinitePlace mine = run_->engine().search(request, loader);
  std::vector<NonFinitePlace> places(context.size);
  run_->channel().all_gather(std::as_bytes(std::span(&mine, 1)),
                             std::as_writable_bytes(std::span(places)));
  // Steps are counted from 1 for people.
  throw Error(describe_nonfinite(places, committed() + 1, shape()));
}

}  // namespace tutti
