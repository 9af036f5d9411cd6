// What a request to stop means: a pure function of when it came, what came before it and how far
// the run is.
#pragma once

#include <optional>
#include <string>

#include "base/wait.h"

namespace tutti {

struct StopRequest {
  int signal = 0;
  Time at{};
  int rank = -1;  ///< the rank that was sent it; -1: the launcher
};

enum class StopAction {
  kNone,    ///< it asks for what is under way
  kFinish,  ///< finish the step, save, end
  kAtOnce,  ///< end without saving
};

/// A person who presses Ctrl-C again has read the answer to the first one. What comes sooner is the
/// same request once more: `timeout` and shells send a signal to the process and to its group,
/// microseconds apart.
constexpr Duration kSecondThoughts = std::chrono::milliseconds(500);

/// `first`: the request that was heeded, if there was one. `begun`: a step has begun, so that there
/// will be something to save. Only SIGINT can mean "at once" later on: a scheduler that repeats its
/// SIGTERM asks for the same.
StopAction decide_stop(const StopRequest& request, const std::optional<StopRequest>& first,
                       bool begun);

/// What the user is told; empty: nothing. "Ctrl-C: finishing the step and saving; Ctrl-C again
/// stops at once".
std::string stop_words(const StopRequest& request, StopAction action, bool begun);

}  // namespace tutti
