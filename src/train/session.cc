// The loop of a run, and what interrupts it when it is due: evaluations, checkpoints, requests to
// stop.
#include "train/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "data/text/tokenizer.h"
#include "device/device_rate.h"
#include "engine/device/device_backend.h"
#include "state/checkpoint.h"
#include "tensor/kernels.h"
#include "tensor/rate.h"

namespace tutti {

/// Rank 0 tells the sinks and the files of the run; the other ranks have none of them.
class Reporter {
 public:
  Reporter(const RunOptions& options, const RunFolder& folder, bool first) {
    if (!first) return;
    if (options.sinks) sinks_ = options.sinks(options.keep ? folder.path : "");
    if (!options.keep) return;
    metrics_ = open_event_file(folder.metrics());
    events_ = open_event_file(folder.events());
  }
  void metric(const nlohmann::json& event) { tell(metrics_.get(), event); }
  void event(const nlohmann::json& event) { tell(events_.get(), event); }

 private:
  void tell(EventSink* file, const nlohmann::json& event) {
    if (file != nullptr) file->write(event);
    for (const auto& sink : sinks_) sink->write(event);
  }
  std::vector<std::unique_ptr<EventSink>> sinks_;
  std::unique_ptr<EventSink> metrics_, events_;
};

namespace {

using nlohmann::json;

json peaks(const Accounts& accounts) {
  json kinds = json::object();
  for (int k = 0; k < kBufferKinds; ++k)
    if (int64_t bytes = accounts.peak(static_cast<BufferKind>(k)); bytes > 0)
      kinds[kind_name(static_cast<BufferKind>(k))] = bytes;
  kinds["total"] = accounts.peak_total();
  return kinds;
}

void write_trace(const Trainer& trainer, const RunFolder& folder, int rank, Time origin,
                 int64_t before) {
  std::string text;
  for (const TraceEvent& e :
       trace_events(trainer.trace(), trainer.program(), origin, static_cast<uint64_t>(before)))
    text += trace_line(e) + "\n";
  write_file_atomic(folder.trace(rank), text);
}

int64_t saved_step(const std::string& checkpoint) {
  return std::stoll(checkpoint.substr(checkpoint.rfind("step-") + 5));
}

double seconds_since(Time begin, Clock& clock) {
  return std::chrono::duration<double>(clock.now() - begin).count();
}

}  // namespace

Session::Session(const RunOptions& options, const RunFolder& folder, const Model& model,
                 Trainer& trainer, Time origin, RankContext& context)
    : options_(options),
      job_(options.job),
      folder_(folder),
      model_(model),
      trainer_(trainer),
      context_(context),
      origin_(origin),
      first_(context.rank == 0),
      last_(last_step(options)),
      watches_(goes_by_evaluations(job_)) {
  if (first_ && options.keep && !options.resume.empty()) {
    cut_metrics(folder, trainer.committed());
    if (trainer.committed() < last_) remove_traces(folder);
  }
  reporter_ = std::make_unique<Reporter>(options, folder, first_);
}

Session::~Session() = default;

void Session::run() {
  check_watched();
  // Room for copies is taken where a checkpoint may come before the last step.
  const bool saves = options_.keep && (job_.train.checkpoint_every > 0 || job_.train.keep_best);
  const std::string held_up = saves ? trainer_.prepare_saves() : "";
  announce();
  if (!held_up.empty())
    reporter_->event(
        {{"event", "notice"},
         {"text", fmt::format("steps wait while a checkpoint is written: {}", held_up)}});

  // One that was ended early has nothing left to do.
  early_ = job_.train.early_stop > 0 && trainer_.progress().watched.stale >= job_.train.early_stop;
  saved_ = options_.resume.empty() ? -1 : trainer_.committed();
  int64_t evaluated = -1;
  const Time begin = context_.clock.now();

  // What is due by the number of steps comes between two of them. A request to stop may have come
  // meanwhile, and then no further step is taken.
  while (trainer_.committed() < last_ && !stop_ && !early_) {
    const int64_t step = take_step();
    if (options_.keep && job_.train.eval_every > 0 && step % job_.train.eval_every == 0) {
      const json metrics = evaluate();
      if (watches_) watch(metrics);
      evaluated = step;
    }
    // A checkpoint that is due while another one is written waits for a later step.
    if (job_.train.checkpoint_every > 0 && step % job_.train.checkpoint_every == 0) due_ = true;
    if (due_ && !writing_) save();
    if (evaluated == step || saved_ == step) goes_on();
  }
  const double seconds = seconds_since(begin, context_.clock);

  // Saved first: what follows may take long, and whoever ends it then loses no step.
  if (saved_ != trainer_.committed()) save();
  if (writing_) end_save();
  if (job_.train.eval_batches > 0 && evaluated != trainer_.committed() && goes_on()) evaluate();
  if (trainer_.data().test && goes_on()) test();
  finish(seconds);
}

/// Whether what is no step is still wanted: all ranks find the same answer, though a request to
/// stop reaches them at different times. Collective.
bool Session::goes_on() {
  if (!options_.keep || stop_) return false;
  const std::string mine = context_.control.stop.load() != 0 ? "stop" : "";
  for (const Card& card : context_.rendezvous.exchange({.bytes = mine}, patience()))
    stop_ |= !card.bytes.empty();
  return !stop_;
}

void Session::announce() {
  reporter_->event({{"event", "start"},
                    {"job", job_.name},
                    {"parameters", trainer_.shape().parameter_count()},
                    {"ranks", context_.size},
                    {"first_step", trainer_.committed()},
                    {"steps", last_},
                    {"tokens_per_step", batch_of(job_.train).samples() * model_.tokens_per_sample},
                    {"unit", model_.task == Task::kTokens ? "tok" : "samples"},
                    {"bytes_forecast", trainer_.forecast_bytes()},
                    {"by_libraries", by_libraries(job_, model_)},
                    {"device_bytes_forecast", trainer_.device_share().bytes},
                    {"startup_seconds", seconds_since(origin_, context_.clock)}});

  // What opening the data found is an event of its own.
  const Split& data = trainer_.data();
  json event{{"event", "data"},
             {"records", data.train->size()},
             {"held_out", data.held_out->size()},
             {"test", data.test ? data.test->size() : 0},
             {"skipped", data.report.skipped},
             {"faults", data.report.faults},
             {"statistics", data.report.statistics}};
  if (first_ && trainer_.partition())
    event["skew"] = to_text(skew_of(trainer_.partition(), *data.train, context_.size));
  reporter_->event(event);

  // A run that goes on says what it found and what it takes.
  if (first_ && !options_.resume.empty())
    reporter_->event({{"event", "notice"},
                      {"text", fmt::format("goes on from step {}, the last of {} checkpoints",
                                           trainer_.committed(),
                                           complete_checkpoints(folder_.checkpoints()).size())}});

  // What was asked for and came out otherwise is told before the first step.
  if (!data.report.notice.empty())
    reporter_->event({{"event", "notice"}, {"text", data.report.notice}});
  if (trainer_.on_device() && job_.layout.graph)
    if (const auto faults = capture_faults(model_, job_.layout); !faults.empty())
      reporter_->event({{"event", "notice"},
                        {"text", fmt::format("steps are issued one by one, not captured: {}",
                                             fmt::join(faults, "; "))}});

  // The run keeps the tokenizer, without which nobody could read what its model writes.
  if (first_ && options_.keep && data.tokenizer) data.tokenizer->save(folder_.tokenizer());
}

/// A metric that the model does not have is refused before the first step.
void Session::check_watched() const {
  const auto known = metric_names(model_.task);
  if (!watches_ || std::find(known.begin(), known.end(), job_.train.watch) != known.end()) return;
  throw Error(fmt::format("train.watch = \"{}\": this model's evaluation has {}", job_.train.watch,
                          fmt::join(known, ", ")));
}

int64_t Session::take_step() {
  const StepReport report = trainer_.step();
  const int64_t tokens = batch_of(job_.train).samples() * model_.tokens_per_sample;
  stop_ = report.stop;
  stepping_ += report.seconds;
  ++steps_;

  // Only float16 has a loss scale, and skips a step whose gradients overflow it.
  json event{{"event", "step"},
             {"step", report.step},
             {"loss", report.loss},
             {"gradient_norm", report.gradient_norm},
             {"lr", report.lr},
             {"seconds", report.seconds},
             {"tokens_per_second", static_cast<double>(tokens) / report.seconds}};
  if (job_.numerics.precision == Precision::kFloat16) {
    event["skipped"] = report.skipped;
    event["loss_scale"] = trainer_.progress().scale.scale;
  }
  reporter_->metric(event);

  // All ranks see at the same step that a checkpoint is complete, or failed.
  if (writing_ && !report.saving) end_save();
  return report.step;
}

json Session::evaluate() {
  const Time begin = context_.clock.now();
  json metrics = trainer_.evaluate().report();
  json event{{"event", "eval"},
             {"step", trainer_.committed()},
             {"held_out_loss", metrics.at("loss")},
             {"metrics", metrics}};

  // The baseline depends on the data alone, so it is counted once, with the first evaluation.
  if (first_ && options_.shows.baseline && !std::exchange(compared_, true))
    baseline_ = options_.shows.baseline(job_, trainer_.data());
  if (baseline_) event["baseline"] = {{"name", baseline_->name}, {"loss", baseline_->loss}};
  reporter_->metric(event);
  evaluating_ += seconds_since(begin, context_.clock);
  return metrics;
}

/// Only the evaluations of train.eval_every are watched: one at the end of a part of a run is no
/// part of the job.
void Session::watch(const json& metrics) {
  if (!metrics.contains(job_.train.watch))
    throw Error(fmt::format(
        "train.watch = \"{}\": the evaluation at step {} has none; its records are of one kind, or "
        "there are too few or too many",
        job_.train.watch, trainer_.committed()));
  const Judgement judgement = trainer_.watch(metrics.at(job_.train.watch));
  if (judgement.improved && job_.train.keep_best) save_best();
  if (!judgement.stop) return;
  early_ = true;
  reporter_->event({{"event", "early_stop"},
                    {"step", trainer_.committed()},
                    {"watch", job_.train.watch},
                    {"best", judgement.watched.best},
                    {"best_step", judgement.watched.best_step}});
}

void Session::test() {
  const Time begin = context_.clock.now();
  const json metrics = trainer_.evaluate_test().report();
  reporter_->metric({{"event", "test"},
                     {"step", trainer_.committed()},
                     {"metrics", metrics},
                     {"classes", trainer_.data().report.classes}});
  evaluating_ += seconds_since(begin, context_.clock);
}

void Session::save() {
  if (!options_.keep) return;
  const int64_t keep = job_.train.keep;
  begin_save(folder_.checkpoints(), [folder = folder_.checkpoints(), keep](const std::string&) {
    if (keep > 0) keep_last(folder, keep);
  });
  saved_ = trainer_.committed();
  due_ = false;
}

/// The new best is complete before the one before it goes.
void Session::save_best() {
  begin_save(folder_.best(),
             [folder = folder_.best()](const std::string& kept) { keep_only(folder, kept); });
}

void Session::begin_save(const std::string& folder,
                         std::function<void(const std::string& saved)> prune) {
  if (writing_) end_save();
  const Time begin = context_.clock.now();
  trainer_.begin_save({.folder = folder,
                       .job_toml = to_toml(job_),
                       .build = options_.build,
                       .prune = std::move(prune)});
  writing_ = true;
  saving_ += seconds_since(begin, context_.clock);
}

/// Waits for the checkpoint that is being written, and tells of it.
void Session::end_save() {
  const Time begin = context_.clock.now();
  writing_ = false;
  const std::string path = trainer_.end_save();
  saving_ += seconds_since(begin, context_.clock);
  reporter_->event({{"event", "saved"}, {"step", saved_step(path)}, {"path", path}});
}

/// Where rank 0's time went; on a device by the shares of those steps that were traced. Reductions
/// run alongside the compute if overlap is on, so kinds may add up to more than the whole.
json Session::seconds_by_kind() const {
  const Trace& trace = trainer_.trace();
  const double traced = trainer_.traced_seconds(), scale = traced > 0 ? stepping_ / traced : 1;
  const auto sum = [&](std::initializer_list<Op> ops) {
    double seconds = 0;
    for (Op op : ops) seconds += trace.seconds(op);
    return seconds * scale;
  };
  return {{"forward", sum({Op::kForward})},
          {"backward", sum({Op::kBackward, Op::kFold})},
          {"load", sum({Op::kLoad})},
          {"reduce", sum({Op::kAcquire, Op::kReduce, Op::kNorm, Op::kGather, Op::kVote})},
          {"update", sum({Op::kUpdate})},
          {"wait", trace.waited(0)},
          {"evaluate", evaluating_},
          {"save", saving_}};
}

/// The floating-point operations of the steps against what all ranks' matmuls reach at the same
/// time.
double Session::matmul_share() {
  const Matmul& matmul = kernels(path_of(job_.layout, context_.rank), job_.numerics.matmul).matmul;
  const RunnerOptions options = trainer_.runner_options();

  // Ranks that share cores reach no more together than one on each core does.
  const bool counts = trainer_.on_device() || context_.rank < this_machine().cores;
  const double rate = !counts ? 0
                      : trainer_.on_device()
                          ? matmul_gflops(*trainer_.device()->device, trainer_.device()->compute,
                                          options.device, options.precision)
                          : matmul_gflops(matmul, context_.clock);
  const std::string mine = std::to_string(rate);
  double limit = 0;
  for (const Card& card : context_.rendezvous.exchange({.bytes = mine}, patience()))
    limit += std::stod(card.bytes) * 1e9;

  // Only the time of the steps counts, not that of evaluations and checkpoints.
  const Batch batch = batch_of(job_.train);
  const double flops =
      trainer_.shape().flops() * batch.lanes * batch.micro_batches * static_cast<double>(steps_);
  return stepping_ > 0 ? flops / stepping_ / limit : 0;
}

void Session::finish(double seconds) {
  // A run that keeps nothing only hands back what its state is.
  const std::string hash = trainer_.agreed_hash();
  if (!options_.keep) {
    if (first_) hand_back(hash);
    return;
  }

  // Every rank writes its trace; rank 0 alone shows what the model has come to.
  const uint64_t order = trainer_.order_digest();
  if (steps_ > 0)
    write_trace(trainer_, folder_, context_.rank, origin_, trainer_.committed() - steps_);
  if (first_ && !stop_ && options_.shows.sample) {
    const auto asked = [this] { return context_.control.stop.load() != 0; };
    const auto text = options_.shows.sample(
        {job_, options_.make_model, model_, trainer_, folder_.checkpoints(), asked});
    stop_ = asked();  // half a sample shows nothing
    if (!stop_ && text) reporter_->event({{"event", "sample"}, {"text", *text}});
  }

  // All ranks take part in this measurement, because they also compute at the same time.
  const double share = matmul_share();
  if (!first_) return;
  const auto samples = static_cast<double>(batch_of(job_.train).samples() * steps_);
  reporter_->event(
      {{"event", "end"},
       {"step", trainer_.committed()},
       {"seconds", seconds},
       {"stopped", stop_},
       {"peak_bytes", peaks(trainer_.accounts())},
       {"loader_stall_seconds", std::chrono::duration<double>(trainer_.loader_stall()).count()},
       {"seconds_by_kind", seconds_by_kind()},
       {"samples_per_second", stepping_ > 0 ? samples / stepping_ : 0},
       {"matmul_share", share},
       {"order", fmt::format("{:016x}", order)},
       {"state_sha256", hash}});
  hand_back(hash);
}

/// Rank 0 tells the launcher the state's hash, and whether a request to stop has left something
/// undone.
void Session::hand_back(const std::string& hash) {
  std::snprintf(context_.control.result, sizeof context_.control.result, "%s", hash.c_str());
  context_.control.heeded.store(stop_ ? 1 : 0);
}

}  // namespace tutti
