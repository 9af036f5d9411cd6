#include "train/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "launch/local.h"
#include "state/checkpoint.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train/trainer.h"

namespace tutti {

namespace {

using nlohmann::json;

/// Rank 0 tells the display, and the files of the run; the other ranks have none of them.
class Reporter {
 public:
  Reporter(const RunOptions& options, const RunFolder& folder, bool first) {
    if (!first) return;
    if (options.display) display_ = options.display();
    if (!options.keep) return;
    metrics_ = open_event_file(folder.metrics());
    events_ = open_event_file(folder.events());
  }
  void metric(const json& event) {
    if (metrics_) metrics_->write(event);
    if (display_) display_->write(event);
  }
  void event(const json& event) {
    if (events_) events_->write(event);
    if (display_) display_->write(event);
  }

 private:
  std::unique_ptr<EventSink> display_, metrics_, events_;
};

json peaks(const Accounts& accounts) {
  json kinds = json::object();
  for (int k = 0; k < kBufferKinds; ++k)
    if (int64_t bytes = accounts.peak(static_cast<BufferKind>(k)); bytes > 0)
      kinds[kind_name(static_cast<BufferKind>(k))] = bytes;
  kinds["total"] = accounts.peak_total();
  return kinds;
}

void write_trace(const Trainer& trainer, const RunFolder& folder, int rank, Time origin) {
  std::string text;
  for (const TraceEvent& e : trace_events(trainer.trace(), trainer.program(), origin)) text += trace_line(e) + "\n";
  write_file_atomic(folder.trace(rank), text);
}

/// From the first step to the last, and what is due at the end. Files of the run are touched from here on.
void train(const RunOptions& options, const RunFolder& folder, const Model& model, Trainer& trainer, Time origin,
           RankContext& context) {
  const Job& job = options.job;
  const bool first = context.rank == 0, resumed = !options.resume.empty();
  if (first && resumed) cut_metrics(folder, trainer.committed());
  Reporter reporter(options, folder, first);
  int64_t last = options.stop_at >= 0 ? options.stop_at : job.train.steps;
  int64_t tokens = batch_of(job.train).samples() * model.tokens_per_sample;
  MemoryForecast forecast = forecast_memory(trainer.program());
  reporter.event({{"event", "start"},
                  {"job", job.name},
                  {"parameters", trainer.shape().parameter_count()},
                  {"ranks", context.size},
                  {"first_step", trainer.committed()},
                  {"steps", last},
                  {"tokens_per_step", tokens},
                  {"bytes_forecast", forecast.total()},
                  {"startup_seconds", std::chrono::duration<double>(context.clock.now() - origin).count()}});

  std::optional<double> bigram;  // counted once
  auto evaluate = [&] {
    double loss = trainer.evaluate();
    json event{{"event", "eval"}, {"step", trainer.committed()}, {"held_out_loss", loss}};
    if (first && job.data.kind == "text") {
      if (!bigram) bigram = bigram_loss(*trainer.data().train, *trainer.data().held_out, job.model.context);
      event["bigram_loss"] = *bigram;
    }
    reporter.metric(event);
  };
  auto save = [&] {
    if (!options.keep) return;
    if (first) {
      std::string path = save_checkpoint(folder.checkpoints(), trainer.state(), to_toml(job));
      reporter.event({{"event", "saved"}, {"step", trainer.committed()}, {"path", path}});
    }
    // A large state may take longer than layout.timeout to write; that rank 0 is alive its heartbeats say.
    context.rendezvous.exchange({}, Deadline::never());
  };

  Time begin = context.clock.now();
  int64_t evaluated = -1, saved = resumed ? trainer.committed() : -1;
  bool stop = false;
  while (trainer.committed() < last && !stop) {
    StepReport report = trainer.step();
    stop = report.stop;
    reporter.metric({{"event", "step"},
                     {"step", report.step},
                     {"loss", report.loss},
                     {"gradient_norm", report.gradient_norm},
                     {"lr", report.lr},
                     {"seconds", report.seconds},
                     {"tokens_per_second", static_cast<double>(tokens) / report.seconds}});
    if (options.keep && job.train.eval_every > 0 && report.step % job.train.eval_every == 0) {
      evaluate();
      evaluated = report.step;
    }
    if (job.train.checkpoint_every > 0 && report.step % job.train.checkpoint_every == 0) {
      save();
      saved = report.step;
    }
  }
  double seconds = std::chrono::duration<double>(context.clock.now() - begin).count();
  if (saved != trainer.committed()) save();
  if (options.keep && !stop && job.train.eval_batches > 0 && evaluated != trainer.committed()) evaluate();
  std::string hash = trainer.agreed_hash();
  if (options.keep) write_trace(trainer, folder, context.rank, origin);
  if (!first) return;
  if (options.keep && !stop && job.model.kind == "gpt" && job.train.sample_bytes > 0) {
    Sampler sampler(job, options.make_model, trainer.units());
    reporter.event(
        {{"event", "sample"}, {"text", sampler.text(job.train.prompt, job.train.sample_bytes, job.train.seed)}});
  }
  reporter.event({{"event", "end"},
                  {"step", trainer.committed()},
                  {"seconds", seconds},
                  {"stopped", stop},
                  {"peak_bytes", peaks(trainer.accounts())},
                  {"loader_stall_seconds", std::chrono::duration<double>(trainer.loader_stall()).count()},
                  {"state_sha256", hash}});
  std::snprintf(context.control.result, sizeof context.control.result, "%s", hash.c_str());
}

/// What one rank does from start to end.
void train_rank(const RunOptions& options, const RunFolder& folder, const std::string& checkpoint, Time origin,
                RankContext& context) {
  Model model = options.make_model(options.job);
  Trainer trainer(options.job, model, context, checkpoint);
  try {
    train(options, folder, model, trainer, origin, context);
  } catch (...) {
    context.failing();  // before the trainer's connections close and others fail because of it
    throw;
  }
}

}  // namespace

RunResult run(const RunOptions& options) {
  const Job& job = options.job;
  RunFolder folder;
  std::string checkpoint;
  bool fresh = false;
  if (!options.resume.empty()) {
    folder = open_run(options.resume);
    checkpoint = checkpoint_of(folder);
  } else if (options.keep) {
    fresh = true;
    folder = create_run(options.out, job);
  }
  Fd lock;
  if (options.keep) lock = lock_run(folder);
  if (!checkpoint.empty()) remove_unfinished(folder);  // of a run whose launcher was killed
  const Time origin = SystemClock().now();             // of the traces: the same for all ranks
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = job.layout.workers == "thread";
  launch.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
  launch.started = options.started;
  LaunchResult launched =
      launch_local(launch, [&](RankContext& context) { train_rank(options, folder, checkpoint, origin, context); });
  if (!launched.ok() && options.keep) {
    remove_unfinished(folder);
    // A run that failed before its first step leaves no folder behind: the next try may use the same --out.
    if (fresh && !has_metrics(folder)) remove_run(folder);
  }
  return {launched.ok(), launched.stopped, launched.failures, launched.result, folder.path};
}

}  // namespace tutti
