// The folder of a run: job.toml, metrics.jsonl, events.jsonl, trace/, checkpoints/.
#pragma once

#include <string>

#include "config/job.h"

namespace tutti {

struct RunFolder {
  std::string path;
  std::string job() const { return path + "/job.toml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string trace(int rank) const { return path + "/trace/rank-" + std::to_string(rank) + ".jsonl"; }
};

/// Makes the folder and writes the job into it. Empty `path`: runs/<job>-<first free number>. A folder that holds
/// anything is refused.
RunFolder create_run(const std::string& path, const Job& job);
/// An existing run; Error when it is none.
RunFolder open_run(const std::string& path);
/// Keeps the metrics of the first `step` steps (a run that goes on from a checkpoint repeats the later ones).
void cut_metrics(const RunFolder& folder, int64_t step);

}  // namespace tutti
