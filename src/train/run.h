// A whole run: start the ranks, train, evaluate, save, sample, end with the state's hash.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/job.h"
#include "data/load/partition.h"
#include "model/make_model.h"
#include "train/shows.h"

namespace tutti {

struct RankContext;

struct RunOptions {
  Job job;  ///< resolved
  MakeModel make_model;
  /// run folder; empty: none is written when `keep` is false, else the next free one
  std::string out;
  std::string resume;    ///< run folder to go on from
  std::string build;     ///< of the program, as checkpoints name it
  int64_t stop_at = -1;  ///< stop at this step; -1: train.steps
  /// false: no folder, no checkpoint, no sample, no evaluation (verify, bench)
  bool keep = true;
  /// Makes the sinks of what people watch. It is called on rank 0, in that rank's process. The
  /// folder is empty if none is kept.
  std::function<std::vector<std::unique_ptr<EventSink>>(const std::string& folder)> sinks;
  OwnPartition partition;  ///< for layout.partition = "own"
  /// The model with what the job adds to it from files (`fresh`: also its first values); infer has
  /// one. Null: for jobs that add nothing.
  std::function<Model(const Job&, const MakeModel&, bool fresh)> prepare;
  Shows shows;
  std::function<void(int rank, int pid)> started;
  std::function<void(const std::string&)> say;  ///< LaunchOptions::say
  /// Reports a run whose thread ranks do not end, and ends the process; without it the run waits
  /// for them.
  std::function<void(const struct RunResult&)> abandon;
};
inline int64_t last_step(const RunOptions& options) {
  return options.stop_at >= 0 ? options.stop_at : options.job.train.steps;
}

struct RunResult {
  bool ok = false;
  /// the signal that ended it: saved if ok, else before its first step or at once
  int stopped_by = 0;
  std::vector<std::string> failures;  ///< the cause first; the others follow from it
  std::string hash;
  std::string folder;
  /// Why a run that was to go on had nothing left to do ("it is at step 12, its last"), and was
  /// left as it was. Empty if it had something to do.
  std::string nothing_left;
};

/// Forks: call it before any ATen work in this process (thread ranks excepted).
RunResult run(const RunOptions& options);

class RankHost;
/// Runs on ranks of another program, which serves them with run_task(). Of the options it needs the
/// job, the folders and what is said here; needs no LibTorch.
RunResult run_hosted(const RunOptions& options, RankHost& host);
/// What a rank of a hosted run does. `options` are those of the program that hosts it, and `task`
/// is the launcher's.
void run_task(const RunOptions& options, RankContext& context, const std::string& task);

/// The events a sink gets, as JSON objects with a field "event". Those of a run that is kept go to
/// its folder, too: step, eval and test to metrics.jsonl, the others to events.jsonl.
///   start       {job, parameters, ranks, first_step, steps, tokens_per_step, unit, bytes_forecast,
///               device_bytes_forecast, startup_seconds}: steps is the last step of this run;
///               bytes_forecast is rank 0's, and device_bytes_forecast is that of all ranks on its
///               device, 0 without one
///   data        {records, held_out, test, skipped, faults, statistics; with a partition, skew}
///   notice      {text}: something asked for is not done, or came out otherwise, and why
///   step        {step, loss, gradient_norm, lr, seconds, tokens_per_second; in float16 skipped,
///               loss_scale}
///   eval        {step, held_out_loss, metrics; where the data has one, baseline {name, loss}}
///   test        {step, metrics, classes}
///   early_stop  {step, watch, best, best_step}
///   saved       {step, path}
///   sample      {text}
///   end         {step, seconds, stopped, peak_bytes by kind, loader_stall_seconds,
///               seconds_by_kind, samples_per_second, matmul_share, order, state_sha256}
///   failed      {failures}: all that the ranks said, the cause first. The launcher writes it, to
///               events.jsonl alone, of a run that has made a step or was resumed

}  // namespace tutti
