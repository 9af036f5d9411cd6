#include "train/run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "engine/channels.h"
#include "launch/local.h"
#include "state/manifest.h"
#include "train/prepare.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace tutti {

namespace {

/// What one rank does from start to end.
void train_rank(const RunOptions& options, const RunFolder& folder, const std::string& checkpoint,
                Time origin, RankContext& context) {
  RankDevice device = open_rank_device(options.job, context.rank);
  Model model = prepared_model(options.job, options.make_model, checkpoint.empty());
  Trainer trainer(options.job, model, context, checkpoint, options.partition, &device);
  // Ready together: who is asked to stop before this has touched no file of the run.
  context.rendezvous.exchange({}, context.while_working(timeout_of(options.job)));
  context.begin();
  try {
    Session(options, folder, model, trainer, origin, context).run();
  } catch (...) {
    context.failing();  // before the trainer's connections close and others fail because of it
    throw;
  }
}

/// Why a run has nothing left to do up to step `last`; "" where it has. One that was stopped or
/// killed at its last step may still have to evaluate: only what came to its own end counts.
std::string nothing_left(const Job& job, const RunFolder& folder, const std::string& checkpoint,
                         int64_t last) {
  const int64_t step = read_manifest(checkpoint).counters.step;
  bool ended = false, early = false;
  std::istringstream lines(path_exists(folder.events()) ? read_file(folder.events()) : "");
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    const bool here = event.is_object() && event.value("step", int64_t{-1}) == step;
    const std::string kind = here ? event.value("event", "") : "";
    ended = kind == "end" && !event.value("stopped", true);
    early |= kind == "early_stop";
  }
  if (!ended || (step < last && !early)) return "";
  if (step < last) return fmt::format("it stopped early at step {}", step);
  return fmt::format("it is at step {}{}", step,
                     step >= job.train.steps ? ", its last" : " already");
}

/// Puts the folder of a run in order that did not end well.
void clean_up(const RunFolder& folder, bool fresh, const LaunchResult& launched) {
  remove_unfinished(folder);
  // A run that failed before its first step leaves no folder behind: the next try may use the same
  // --out.
  if (fresh && !has_metrics(folder)) return remove_run(folder);
  try {
    open_event_file(folder.events())->write({{"event", "failed"}, {"failures", launched.failures}});
  } catch (const Error&) {
    // A disk that is full may have been the cause, which the user is told.
  }
}

}  // namespace

RunResult run(const RunOptions& given) {
  RunOptions options = given;
  const Job& job = options.job;
  RunFolder folder;
  Fd lock;
  std::string checkpoint;
  std::string nothing;
  const bool fresh = options.resume.empty() && options.keep;
  // until the launcher takes them: a folder that is half made would stay behind
  const HeldStops held;
  if (!options.resume.empty()) {
    folder = open_run(options.resume);
    lock = lock_run(folder);
    checkpoint = checkpoint_of(folder);
    nothing = nothing_left(job, folder, checkpoint, last_step(options));
    if (!nothing.empty()) {
      // Its ranks load the state and agree on its hash; they write nothing and report nothing.
      options.keep = false;
      options.sinks = nullptr;
      options.started = nullptr;
    } else {
      remove_unfinished(folder);  // of a run whose launcher was killed
      if (!path_exists(folder.job()))
        write_file_atomic(folder.job(), read_manifest(checkpoint).job_toml);
    }
  } else if (fresh) {
    LockedRun made = create_run(options.out, job);
    folder = std::move(made.folder);
    lock = std::move(made.lock);
  }
  const Time origin = SystemClock().now();  // of the traces: the same for all ranks
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = job.layout.workers == Workers::kThread;
  launch.timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
  launch.started = options.started;
  launch.say = options.say;
  const auto ended = [&](const LaunchResult& launched) -> RunResult {
    if (!launched.ok() && options.keep) clean_up(folder, fresh, launched);
    const bool stopped = launched.at_once || (launched.ok() && launched.heeded);
    return {launched.ok(),     stopped ? launched.signal : 0,
            launched.failures, launched.result,
            folder.path,       nothing};
  };
  if (options.abandon)
    launch.abandon = [&](const LaunchResult& launched) { options.abandon(ended(launched)); };
  return ended(launch_local(launch, [&](RankContext& context) {
    train_rank(options, folder, checkpoint, origin, context);
  }));
}

}  // namespace tutti
