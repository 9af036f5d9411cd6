// The folder of a run: job.toml, metrics.jsonl, events.jsonl, trace/, checkpoints/, tensorboard/, and where the job has
// them best/ and tokenizer.json.
#pragma once

#include <string>

#include "base/file.h"
#include "config/job.h"

namespace tutti {

struct RunFolder {
  std::string path;
  bool made = false;  ///< by create_run; an empty folder that was there is the user's own
  std::string job() const { return path + "/job.toml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string best() const { return path + "/best"; }  ///< train.keep_best: one checkpoint
  std::string tensorboard() const { return path + "/tensorboard"; }
  std::string tokenizer() const { return path + "/tokenizer.json"; }
  std::string trace(int rank) const { return path + "/trace/rank-" + std::to_string(rank) + ".jsonl"; }
};

/// Makes the folder and writes the job into it. Empty `path`: runs/<job>-<first free number>. A folder that holds
/// anything is refused. Nothing is left behind when it fails.
RunFolder create_run(const std::string& path, const Job& job);
/// An existing run; Error when it is none.
RunFolder open_run(const std::string& path);
/// Held while a run writes into its folder, by the launcher and its ranks, and gone with the last of them. Error when
/// another run holds it.
Fd lock_run(const RunFolder& folder);
/// The checkpoint of the highest step. Error when there is none, or when its manifest is missing: an older one is never
/// taken in its place.
std::string checkpoint_of(const RunFolder& folder);
/// Keeps the metrics of the first `step` steps (a run that goes on from a checkpoint repeats the later ones).
void cut_metrics(const RunFolder& folder, int64_t step);
/// Removes the ranks' traces of an earlier start, which had other times and may have had more ranks.
void remove_traces(const RunFolder& folder);
/// Whether a step was committed and written down.
bool has_metrics(const RunFolder& folder);
/// Removes what a killed rank was writing and nobody will finish: a checkpoint's hidden files, temporary files.
void remove_unfinished(const RunFolder& folder);
/// Removes everything that create_run and a run make.
void remove_run(const RunFolder& folder);

}  // namespace tutti
