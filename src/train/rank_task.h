// What the launcher of a run tells its ranks.
#pragma once

#include <functional>
#include <string>

#include "base/wait.h"
#include "train/run.h"

namespace tutti {

struct RankTask {
  std::string folder;      ///< of the run; empty: none is kept
  std::string checkpoint;  ///< to go on from; empty: a fresh start
  bool keep = true;        ///< RunOptions::keep, unless there is nothing left to do
  Time origin{};           ///< of the traces: the same for all ranks

  /// The task as text, for ranks of another program on the same host.
  std::string text() const;
  static RankTask from(const std::string& text);
};

using RankBody = std::function<void(const RunOptions&, const RankTask&, RankContext&)>;
/// Runs with ranks that this process forks or has as threads.
RunResult run_launched(const RunOptions& options, const RankBody& body);

}  // namespace tutti
