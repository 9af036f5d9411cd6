// A step, read aloud: the plan's instructions are walked by the executor; each handler below says what one of them
// means. What comes before the first step is in trainer_setup.cc.
#include "train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "state/checkpoint.h"
#include "train/evaluate.h"
#include "train/nonfinite.h"

namespace tutti {

/// Where the gradient of `unit` lies in a buffer of the program.
float* Trainer::gradient(int buffer, int unit) const {
  const Buffer& b = program().buffers[buffer];
  if (b.partial < 0) return private_gradients_[buffer];
  return reinterpret_cast<float*>(window_.data()) + b.partial * partial_floats_ + bucket_start_[bucket_of_[unit]] +
         offset_in_bucket_[unit];
}

Pass Trainer::pass_of(int lane, int micro, int64_t step) const {
  return {job_.train.seed, step, lane, micro, first_sample(batch_, step, lane, micro), 0, true};
}

Handlers Trainer::handlers() {
  Handlers on;
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  auto deadline = [this] { return context_.clock.after(timeout_); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { micro_batch_ = &loader_->next(step_, i.lane, i.micro); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    runner_->forward(i.block, i.segment, pass_of(i.lane, i.micro, step_), *micro_batch_);
    bool last = i.block + 1 == static_cast<int>(model_.blocks.size()) &&
                i.segment + 1 == static_cast<int>(model_.blocks[i.block].segments.size());
    if (!last) return;
    mine_.loss.add(runner_->loss().sum);
    mine_.targets.add(runner_->loss().count);
  });
  set(Op::kBackward, [this](const Instruction& i, uint64_t) { backward(i); });
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kAcquire, [this, deadline](const Instruction& i, uint64_t step) {
    if (step > 0) reductions_[i.bucket]->await_release(step - 1, deadline());
  });
  set(Op::kReduce,
      [this, deadline](const Instruction& i, uint64_t step) { reductions_[i.bucket]->reduce(step, deadline()); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kGather,
      [this, deadline](const Instruction& i, uint64_t step) { reductions_[i.bucket]->gather(step, deadline()); });
  set(Op::kVote, [this](const Instruction&, uint64_t) { vote(); });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t step) { update(i, step); });
  return on;
}

void Trainer::backward(const Instruction& i) {
  for (int buffer : i.writes) {
    const Buffer& b = program().buffers[buffer];
    if (b.kind != BufferKind::kGradient) continue;
    int unit = b.unit < 0 ? i.block : b.unit;
    unit_gradients_[unit] = gradient(buffer, unit);
  }
  runner_->backward(i.block, i.segment, pass_of(i.lane, i.micro, step_), *micro_batch_, unit_gradients_);
}

void Trainer::fold(const Instruction& i) {
  for (const Add& add : i.adds)
    add_into(gradient(add.into, i.block), gradient(add.from, i.block), shape_.blocks[i.block].gradient_size);
}

void Trainer::norm(const Instruction& i) {
  const float* slice = reductions_[i.bucket]->view(context_.rank);
  int64_t begin = specs_[i.bucket].slices[context_.rank].begin;
  for (const auto& [chunk, unit] : my_chunks_[i.bucket]) {
    const double squares = sum_squares(slice + (chunk.begin - begin), chunk.size());
    mine_.squares.add(squares);
    if (job_.train.clip_by == "unit") unit_squares_[unit].add(squares);
  }
}

/// The commit: after it every rank knows the same norm, loss and decision.
void Trainer::vote() {
  mine_.stop = context_.control.stop.load() != 0 ? 1 : 0;
  std::vector<Vote> votes(context_.size);
  data_channel_->all_gather(std::as_bytes(std::span(&mine_, 1)), std::as_writable_bytes(std::span(votes)));
  all_ = merge(votes);
  if (!all_.finite()) throw NonFinite();
  const TrainConfig& train = job_.train;
  scalars_.step = step_;
  scalars_.lr = learning_rate(train, step_, watched_);
  const double factor = train.clip_by == "norm" ? clip_factor(all_.gradient_norm(), train.clip) : 1;
  scalars_.gradient_scale = factor / all_.divisor();
  if (train.clip_by == "value") scalars_.clip_value = train.clip;
  if (train.clip_by == "unit") share_unit_squares();
}

/// Every rank summed the squares of its slices; a unit's are all ranks'.
void Trainer::share_unit_squares() {
  const size_t units = unit_squares_.size();
  std::vector<ExactSum> all(units * context_.size);
  data_channel_->all_gather(std::as_bytes(std::span(unit_squares_)), std::as_writable_bytes(std::span(all)));
  for (size_t u = 0; u < units; ++u) {
    unit_squares_[u] = {};
    for (int r = 0; r < context_.size; ++r) unit_squares_[u].merge(all[r * units + u]);
  }
}

/// Every parameter of the unit, slice by slice: gradients are read where their owner left them.
void Trainer::update(const Instruction& i, uint64_t step) {
  int unit = i.block, bucket = bucket_of_[unit];
  const ReductionSpec& spec = specs_[bucket];
  int64_t base = offset_in_bucket_[unit];
  StepScalars scalars = scalars_;
  if (job_.train.clip_by == "unit") {
    const double norm = std::sqrt(unit_squares_[unit].value()) / all_.divisor();
    scalars.gradient_scale *= clip_factor(norm, job_.train.clip);
  }
  const auto& parameters = shape_.blocks[unit].parameters;
  std::vector<GradientPiece> pieces;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t begin = base + parameters[p].offset, end = begin + parameters[p].size;
    pieces.clear();
    for (size_t s = 0; s < spec.slices.size(); ++s) {
      Range part{std::max(begin, spec.slices[s].begin), std::min(end, spec.slices[s].end)};
      if (part.empty()) continue;
      pieces.push_back({part.begin - base, part.size(),
                        reductions_[bucket]->view(static_cast<int>(s)) + (part.begin - spec.slices[s].begin)});
    }
    updater_->update(*units_, unit, p, pieces, scalars, int64_t{batch_.lanes} * batch_.micro_batches);
  }
  // Units are updated in the bucket's order: after the last one nobody here reads the bucket any more.
  if (plan_.buckets[bucket].units.back() == unit) reductions_[bucket]->release(step);
}

StepReport Trainer::step() {
  Time begin = context_.clock.now();
  mine_ = {};
  std::fill(unit_squares_.begin(), unit_squares_.end(), ExactSum{});
  try {
    executor_->run(round_);
  } catch (const NonFinite&) {
    explain_nonfinite();
  }
  ++round_;
  ++step_;
  context_.control.ranks[context_.rank].step.store(step_);
  double taken = std::chrono::duration<double>(context_.clock.now() - begin).count();
  return {step_, all_.mean_loss(), all_.gradient_norm(), scalars_.lr, taken, all_.stop != 0};
}

Metrics Trainer::evaluate() {
  const int64_t most = job_.train.eval_batches * batch_.lanes * batch_.micro_batch_size;
  return tutti::evaluate(model_, *runner_, *data_.held_out, std::min(most, data_.held_out->size()), batch_, lanes_,
                         job_.train.seed, step_, *main_channel_);
}

Metrics Trainer::evaluate_test() {
  return tutti::evaluate(model_, *runner_, *data_.test, data_.test->size(), batch_, lanes_, job_.train.seed, step_,
                         *main_channel_);
}

Judgement Trainer::watch(double value) {
  Judgement judgement = judge(job_.train, watched_, value, step_);
  watched_ = judgement.watched;
  return judgement;
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = loader_->digest();
  std::vector<uint64_t> all(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

State Trainer::state() const { return units_->state({step_, step_ * batch_.samples(), to_text(watched_)}); }

std::string Trainer::agreed_hash() {
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
  NonFinitePlace mine = find_nonfinite(model_, shape_, *runner_, loader_options(), job_.train.seed, context_);
  std::vector<NonFinitePlace> places(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places)));
  throw Error(describe_nonfinite(places, step_ + 1, shape_));  // steps are counted from 1 for people
}

}  // namespace tutti
