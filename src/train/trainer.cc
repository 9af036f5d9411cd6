// A step, and what is asked between steps. How one epoch follows another is in change_epoch.cc;
// what a step computes is the engine's (engine/engine.h).
#include "train/trainer.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "config/timeout.h"
#include "eval/evaluate.h"
#include "state/load_checkpoint.h"

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

EpochRun& Trainer::run() const {
  TUTTI_CHECK(run_ != nullptr, "worker {} takes no part in an epoch", worker_.context.worker);
  return *run_;
}

/// Runs what the members do together. A rank whose connections break in it goes on to another
/// epoch, or ends: the others must not wait for it.
template <class Collective>
auto Trainer::together(Collective&& collective) {
  try {
    return collective();
  } catch (const CommError&) {
    worker_.context.failing();  // before others lose this rank
    run().leave();
    throw;
  }
}

StepReport Trainer::step() {
  Clock& clock = worker_.context.clock;
  const Time begin = clock.now();
  const StepRequest request = request_after(worker_.job, worker_.progress);
  left_ = true;
  const StepVerdict verdict = together([&] { return run().engine().run(request); });
  left_ = false;
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
  return evaluate_records(records, std::min(most, records.size()));
}

Metrics Trainer::evaluate_test() {
  const Dataset& records = *worker_.data.test;
  return evaluate_records(records, records.size());
}

Metrics Trainer::evaluate_records(const Dataset& records, int64_t count) {
  return together([&] {
    return tutti::evaluate(worker_.model, run().engine(), records, count, worker_.batch,
                           worker_.job.train.seed, committed(), run().channel());
  });
}

Judgement Trainer::watch(double value) {
  Judgement judgement =
      judge(worker_.job.train, worker_.progress.watched, value, worker_.progress.step);
  worker_.progress.watched = judgement.watched;
  return judgement;
}

template <class Value>
void Trainer::gather(const Value& mine, std::vector<Value>& all) {
  together([&] {
    run().channel().all_gather(std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)));
  });
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = worker_.order_digest + run().engine().order_digest();
  std::vector<uint64_t> all(run().context().size);
  gather(mine, all);
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

std::function<State()> Trainer::state_alongside() {
  std::function<void()> copied = units().whole() ? run().engine().copy_out() : nullptr;
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
  if (const std::function<void()> copied = run().engine().copy_out()) copied();
  return run().collector();
}

std::string Trainer::save(const std::string& folder, const std::string& job_toml) {
  // A large state may take longer than layout.timeout to write: ranks wait while others work.
  RankContext& context = run().context();
  const Patience patience = context.while_working(timeout_of(worker_.job));
  const auto tell_all = [&](const std::string& mine) {
    std::vector<std::string> all;
    for (Card& card : context.rendezvous.exchange({.bytes = mine}, patience))
      all.push_back(std::move(card.bytes));
    return all;
  };
  return together([&] { return state().save(folder, counters(), job_toml, tell_all); });
}

std::string Trainer::agreed_hash() {
  return together([&] { return state().hash(counters()); });
}

void Trainer::explain_nonfinite(const StepRequest& request) {
  const RankContext& context = run().context();
  LoaderOptions options = run().loader_options();
  options.depth = 1;
  Loader loader(options, context.clock, &context.control.cancel);
  const NonFinitePlace mine = together([&] { return run().engine().search(request, loader); });
  std::vector<NonFinitePlace> places(context.size);
  gather(mine, places);
  // Steps are counted from 1 for people.
  throw Error(describe_nonfinite(places, committed() + 1, shape()));
}

}  // namespace tutti
