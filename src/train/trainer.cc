// A step and what is asked between steps. What comes before the first one is in trainer_setup.cc;
// what a step computes is the engine's (engine/engine.h).
#include "train/trainer.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "engine/host/host_travel.h"
#include "eval/evaluate.h"
#include "plan/ir/plan_memory.h"

namespace tutti {

StepReport Trainer::step() {
  const Time begin = context_.clock.now();
  const StepRequest request = request_after(job_, progress_);
  const StepVerdict verdict = engine_->run(request);
  if (!verdict.finite && !may_skip(progress_.scale, job_.numerics)) explain_nonfinite(request);
  progress_ = next_progress(job_, progress_, verdict.finite);
  const double taken = std::chrono::duration<double>(context_.clock.now() - begin).count();
  return {progress_.step, verdict.loss, verdict.gradient_norm, request.lr,
          taken,          verdict.stop, !verdict.finite};
}

Metrics Trainer::evaluate() {
  const int64_t most = job_.train.eval_batches * batch_.lanes * batch_.micro_batch_size;
  return tutti::evaluate(model_, *engine_, *data_.held_out, std::min(most, data_.held_out->size()),
                         batch_, job_.train.seed, progress_.step, *main_channel_);
}

Metrics Trainer::evaluate_test() {
  return tutti::evaluate(model_, *engine_, *data_.test, data_.test->size(), batch_, job_.train.seed,
                         progress_.step, *main_channel_);
}

Judgement Trainer::watch(double value) {
  Judgement judgement = judge(job_.train, progress_.watched, value, progress_.step);
  progress_.watched = judgement.watched;
  return judgement;
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = engine_->order_digest();
  std::vector<uint64_t> all(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)),
                            std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

std::function<State()> Trainer::state_beside() {
  std::function<void()> copied = units_->whole() ? engine_->copy_out() : nullptr;
  if (!copied) return nullptr;
  return [this, copied = std::move(copied), counters = counters_of(job_, progress_)] {
    copied();
    return units_->state(counters);
  };
}

bool Trainer::whole() const {
  for (size_t u = 0; u < shape_.blocks.size(); ++u)
    if (units_->held(static_cast<int>(u)).parameters != Range{0, shape_.blocks[u].unit_size})
      return false;
  return true;
}

Collector& Trainer::state() {
  if (const std::function<void()> copied = engine_->copy_out()) copied();
  return *collector_;
}

std::string Trainer::save(const std::string& folder, const std::string& job_toml) {
  return state().save(folder, counters_of(job_, progress_), job_toml);
}

std::string Trainer::agreed_hash() { return state().hash(counters_of(job_, progress_)); }

int64_t Trainer::forecast_bytes() const {
  if (on_device()) return device_forecast_.total();
  return forecast_memory(program()).total() +
         message_bytes(plan(), context_.rank, reaches_all(*transport_));
}

void Trainer::explain_nonfinite(const StepRequest& request) {
  LoaderOptions options = loader_options();
  options.depth = 1;
  Loader loader(options, context_.clock, &context_.control.cancel);
  NonFinitePlace mine = engine_->search(request, loader);
  std::vector<NonFinitePlace> places(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)),
                            std::as_writable_bytes(std::span(places)));
  // steps are counted from 1 for people
  throw Error(describe_nonfinite(places, progress_.step + 1, shape_));
}

}  // namespace tutti
