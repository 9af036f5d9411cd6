// A step and what is asked between steps. What comes before the first one is in trainer_setup.cc; what a step computes
// is the engine's (host_engine.cc, device_engine.cc).
#include "train/trainer.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "engine/nonfinite.h"
#include "state/checkpoint.h"
#include "train/evaluate.h"

namespace tutti {

StepReport Trainer::step() {
  const Time begin = context_.clock.now();
  const double lr = learning_rate(job_.train, step_, watched_);
  const StepVerdict verdict = engine_->run({step_, step_ - scale_.skipped, lr, scale_.scale});
  if (!verdict.finite && !may_skip(scale_, job_.numerics)) explain_nonfinite();
  scale_ = next_loss_scale(scale_, verdict.finite, job_.numerics);
  ++step_;
  const double taken = std::chrono::duration<double>(context_.clock.now() - begin).count();
  return {step_, verdict.loss, verdict.gradient_norm, lr, taken, verdict.stop, !verdict.finite};
}

Metrics Trainer::evaluate() {
  const int64_t most = job_.train.eval_batches * batch_.lanes * batch_.micro_batch_size;
  return tutti::evaluate(model_, engine_->placement(), *data_.held_out, std::min(most, data_.held_out->size()), batch_,
                         job_.train.seed, step_, *main_channel_);
}

Metrics Trainer::evaluate_test() {
  return tutti::evaluate(model_, engine_->placement(), *data_.test, data_.test->size(), batch_, job_.train.seed, step_,
                         *main_channel_);
}

Judgement Trainer::watch(double value) {
  Judgement judgement = judge(job_.train, watched_, value, step_);
  watched_ = judgement.watched;
  return judgement;
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = engine_->order_digest();
  std::vector<uint64_t> all(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

StateCounters Trainer::counters() const {
  std::string schedule = to_text(watched_);
  if (const std::string scale = to_text(scale_); !scale.empty()) schedule += ";" + scale;
  return {step_, step_ * batch_.samples(), schedule};
}

State Trainer::state() const {
  if (const std::function<void()> copied = engine_->copy_out()) copied();
  return units_->state(counters());
}

std::function<State()> Trainer::state_beside() {
  std::function<void()> copied = mesh_ ? nullptr : engine_->copy_out();
  if (!copied) return nullptr;
  return [this, copied = std::move(copied), counters = counters()] {
    copied();
    return units_->state(counters);
  };
}

/// As it is now, wherever it lies.
Collector& Trainer::cut_state() {
  if (const std::function<void()> copied = engine_->copy_out()) copied();
  return mesh_->state();
}

std::string Trainer::save(const std::string& folder, const std::string& job_toml) {
  if (mesh_) return cut_state().save(folder, counters(), job_toml);
  return context_.rank == 0 ? save_checkpoint(folder, state(), job_toml) : "";
}

int64_t Trainer::forecast_bytes() const {
  if (on_device()) return device_forecast_.total();
  return mesh_ ? mesh_->forecast(reaches_all(*transport_)) : forecast_memory(program()).total();
}

std::string Trainer::agreed_hash() {
  if (mesh_) return cut_state().hash(counters());
  std::string mine = state_hash(state());
  std::string all(mine.size() * context_.size, ' ');
  main_channel_->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (int r = 0; r < context_.size; ++r)
    if (std::string other = all.substr(r * mine.size(), mine.size()); other != mine)
      throw Error(fmt::format("rank {} holds state {} but rank {} holds {}: this must never happen", r, other,
                              context_.rank, mine));
  return mine;
}

void Trainer::explain_nonfinite() {
  LoaderOptions options = loader_options();
  if (mesh_) options.sequence = mesh_->passes();
  NonFinitePlace mine =
      find_nonfinite(model_, shape_, engine_->placement(), std::move(options), job_.train.seed, context_);
  std::vector<NonFinitePlace> places(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places)));
  throw Error(describe_nonfinite(places, step_ + 1, shape_));  // steps are counted from 1 for people
}

}  // namespace tutti
