// Runs in processes of their own, so that each starts from a process that has computed nothing, and
// several can go on side by side.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/wait.h"
#include "train/run.h"

namespace tutti {

struct Apart {
  pid_t pid = -1;
  Fd answer;  ///< what the process says when it ends
};

/// Starts run(options) in a child, which dies with this process, and its ranks with it.
Apart start_apart(const RunOptions& options);
/// Waits for one to end, and returns what its run did.
RunResult finish_apart(Apart& apart);
/// What `work` returns, worked out in a process of its own. Throws Error with what it threw. The
/// work may take any time, since nobody knows how large the files are that it reads; Error is
/// thrown, too, when its process has done nothing for `silence`.
std::string answer_apart(const std::function<std::string()>& work,
                         Duration silence = std::chrono::minutes(5));
/// The index of one that has ended, or is about to. None: the descriptor `also` became readable
/// first, or the time was over.
std::optional<size_t> wait_any(const std::vector<Apart>& running, int also, Duration at_most);

}  // namespace tutti
