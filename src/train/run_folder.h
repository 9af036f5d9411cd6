// The folder of a run: job.toml, metrics.jsonl, events.jsonl, trace/, checkpoints/, tensorboard/,
// and where the job has them best/ and tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "config/job.h"

namespace tutti {

struct RunFolder {
  std::string path;
  /// by create_run, outermost first; a folder that was there is the user's own
  std::vector<std::string> made{};
  std::string job() const { return path + "/job.toml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string best() const { return path + "/best"; }  ///< train.keep_best: one checkpoint
  std::string tensorboard() const { return path + "/tensorboard"; }
  std::string tokenizer() const { return path + "/tokenizer.json"; }
  std::string trace(int rank) const {
    return path + "/trace/rank-" + std::to_string(rank) + ".jsonl";
  }
};

/// A run's folder that no other process writes into for as long as the lock is held.
struct LockedRun {
  RunFolder folder;
  Fd lock;
};
/// Makes the folder, locks it, and only then writes the job into it: of several that start at the
/// same time in one folder, one gets it. Empty `path`: runs/<job>-<first free number>. A folder
/// that holds anything, or in which a run is going on, is refused. Nothing is left behind when it
/// fails.
LockedRun create_run(const std::string& path, const Job& job);
/// An existing run; Error when it is none.
RunFolder open_run(const std::string& path);
/// The run's job with these settings: from job.toml, or where that is missing from the last
/// checkpoint, which has it too.
Job job_of_run(const RunFolder& folder, const std::vector<Setting>& settings = {});
/// Held while a run writes into its folder, by the launcher and its ranks, and gone with the last
/// of them. Error when another run holds it.
Fd lock_run(const RunFolder& folder);
/// The checkpoint of the highest step. Error when there is none, or when its manifest is missing:
/// an older one is never taken in its place.
std::string checkpoint_of(const RunFolder& folder);
/// For who asks for it: reads checkpoints from the newest back to one that is whole, and renames
/// those that are not to damaged-step-...; what is wrong with each. Error when none is whole, or
/// another process trains in the folder: then nothing is changed.
std::vector<std::string> set_aside_damaged(const RunFolder& folder);
/// Keeps the metrics of the first `step` steps (a run that goes on from a checkpoint repeats the
/// later ones).
void cut_metrics(const RunFolder& folder, int64_t step);
/// Removes the ranks' traces of an earlier start, which had other times and may have had more
/// ranks.
void remove_traces(const RunFolder& folder);
/// Whether a step was committed and written down.
bool has_metrics(const RunFolder& folder);
/// Removes what a killed rank was writing and nobody will finish: a checkpoint's hidden files,
/// temporary files.
void remove_unfinished(const RunFolder& folder);
/// Removes everything that create_run and a run make, and of the folders above it those that it
/// made and that are empty.
void remove_run(const RunFolder& folder);

}  // namespace tutti
