#include "train/run.h"

#include "base/error.h"
#include "base/file.h"
#include "launch/local.h"
#include "state/manifest.h"
#include "train/prepare.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace tutti {

namespace {

/// What one rank does from start to end.
void train_rank(const RunOptions& options, const RunFolder& folder, const std::string& checkpoint, Time origin,
                RankContext& context) {
  RankDevice device = open_rank_device(options.job, context.rank);
  Model model = prepared_model(options.job, options.make_model, checkpoint.empty());
  Trainer trainer(options.job, model, context, checkpoint, options.partition, &device);
  try {
    Session(options, folder, model, trainer, origin, context).run();
  } catch (...) {
    context.failing();  // before the trainer's connections close and others fail because of it
    throw;
  }
}

}  // namespace

RunResult run(const RunOptions& options) {
  const Job& job = options.job;
  if (job.layout.ranks > Control::kMaxRanks)
    throw ConfigError(
        {fmt::format("layout.ranks = {}: one command starts at most {} ranks", job.layout.ranks, Control::kMaxRanks)});
  RunFolder folder;
  Fd lock;
  std::string checkpoint;
  const bool fresh = options.resume.empty() && options.keep;
  if (!options.resume.empty()) {
    folder = open_run(options.resume);
    lock = lock_run(folder);
    checkpoint = checkpoint_of(folder);
    remove_unfinished(folder);  // of a run whose launcher was killed
    if (!path_exists(folder.job())) write_file_atomic(folder.job(), read_manifest(checkpoint).job_toml);
  } else if (fresh) {
    LockedRun made = create_run(options.out, job);
    folder = std::move(made.folder);
    lock = std::move(made.lock);
  }
  const Time origin = SystemClock().now();  // of the traces: the same for all ranks
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
