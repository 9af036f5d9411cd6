// The launcher's part of a run: its folder, its ranks, how it ended. What a rank does is in
// run_rank.cc; nothing here needs LibTorch, so that a light program can launch.
#include "train/run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "config/timeout.h"
#include "launch/limits.h"
#include "launch/local.h"
#include "state/manifest.h"
#include "train/rank_task.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

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

/// How the ranks of a run come to be.
using Launch = std::function<LaunchResult(LaunchOptions& launch, const RunOptions& options,
                                          const RankTask& task)>;

RunResult run_by(const RunOptions& given, const Launch& start) {
  RunOptions options = given;
  const Job& job = options.job;
  if (const std::string fault = too_many_ranks(job.layout, host_limits()); !fault.empty())
    throw ConfigError({fault});

  // The folder is this run's from here on, and in the state in which the run begins.
  RunFolder folder;
  Fd lock;
  RankTask task;
  std::string nothing;
  const bool fresh = options.resume.empty() && options.keep;
  const HeldStops held;  // until the launcher takes them: a folder that is half made would stay
  if (!options.resume.empty()) {
    folder = open_run(options.resume);
    lock = lock_run(folder);
    task.checkpoint = checkpoint_of(folder);
    nothing = nothing_left(job, folder, task.checkpoint, last_step(options));
    if (!nothing.empty()) {
      // Its ranks load the state and agree on its hash; they write nothing and report nothing.
      options.keep = false;
      options.sinks = nullptr;
      options.started = nullptr;
    } else {
      remove_unfinished(folder);  // of a run whose launcher was killed
      if (!path_exists(folder.job()))
        write_file_atomic(folder.job(), read_manifest(task.checkpoint).job_toml);
    }
  } else if (fresh) {
    LockedRun made = create_run(options.out, job);
    folder = std::move(made.folder);
    lock = std::move(made.lock);
  }

  // The ranks are told what is the same for all of them, and the launcher how to watch over them.
  task.folder = folder.path;
  task.keep = options.keep;
  task.origin = SystemClock().now();  // the same for all ranks
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = job.layout.workers == Workers::kThread;
  launch.timeout = timeout_of(job);
  launch.started = options.started;
  launch.say = options.say;
  if (lock) launch.kept = {lock.get()};

  // The folder is put in order before anybody hears how the run ended.
  const auto ended = [&](const LaunchResult& launched) -> RunResult {
    if (!launched.ok() && options.keep) clean_up(folder, fresh, launched);
    const bool stopped = launched.at_once || (launched.ok() && launched.heeded);
    return {launched.ok(),     stopped ? launched.signal : 0,
            launched.failures, launched.result,
            folder.path,       nothing};
  };
  if (options.abandon)
    launch.abandon = [&](const LaunchResult& launched) { options.abandon(ended(launched)); };
  return ended(start(launch, options, task));
}

}  // namespace

std::string RankTask::text() const {
  return nlohmann::json{{"folder", folder},
                        {"checkpoint", checkpoint},
                        {"keep", keep},
                        {"origin", origin.time_since_epoch().count()}}
      .dump();
}

RankTask RankTask::from(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at("folder"), json.at("checkpoint"), json.at("keep"),
          Time(Duration(json.at("origin").get<int64_t>()))};
}

RunResult run_launched(const RunOptions& options, const RankBody& body) {
  return run_by(
      options, [&](LaunchOptions& launch, const RunOptions& settled, const RankTask& task) {
        return launch_local(launch, [&](RankContext& context) { body(settled, task, context); });
      });
}

RunResult run_hosted(const RunOptions& options, RankHost& host) {
  return run_by(options, [&](LaunchOptions& launch, const RunOptions&, const RankTask& task) {
    launch.host = &host;
    launch.task = task.text();
    return launch_local(launch, {});
  });
}

}  // namespace tutti
