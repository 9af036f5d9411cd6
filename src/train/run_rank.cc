// What one rank of a run does from start to end.
#include "config/isa.h"
#include "config/timeout.h"
#include "train/rank_task.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace tutti {

namespace {

void train_rank(const RunOptions& options, const RankTask& task, RankContext& context) {
  const RunFolder folder{task.folder};
  RankDevice device = open_rank_device(options.job, context.rank);
  const bool fresh = task.checkpoint.empty();
  const Job own = on_rank(options.job, context.rank);
  Model model =
      options.prepare ? options.prepare(own, options.make_model, fresh) : options.make_model(own);
  Trainer trainer(options.job, model, context, task.checkpoint, options.partition, &device);
  // Ready together: who is asked to stop before this has touched no file of the run.
  context.rendezvous.exchange({}, context.while_working(timeout_of(options.job)));
  context.begin();
  try {
    Session(options, folder, model, trainer, task.origin, context).run();
  } catch (...) {
    context.failing();  // before the trainer's connections close and others fail because of it
    throw;
  }
}

}  // namespace

RunResult run(const RunOptions& options) { return run_launched(options, train_rank); }

void run_task(const RunOptions& options, RankContext& context, const std::string& task) {
  const RankTask told = RankTask::from(task);
  RunOptions here = options;
  here.keep = told.keep;
  if (!told.keep) here.sinks = nullptr;
  train_rank(here, told, context);
}

}  // namespace tutti
