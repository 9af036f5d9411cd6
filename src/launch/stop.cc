// The decision is a function of values, so that every order of signals can be tested without
// sending any.
#include "launch/stop.h"

#include <fmt/format.h>

#include <csignal>

#include "base/stop_signals.h"

namespace tutti {

StopAction decide_stop(const StopRequest& request, const std::optional<StopRequest>& first,
                       bool begun) {
  if (!first) return begun ? StopAction::kFinish : StopAction::kAtOnce;
  const bool again = request.signal == SIGINT && request.at - first->at >= kSecondThoughts;
  return again ? StopAction::kAtOnce : StopAction::kNone;
}

std::string stop_words(const StopRequest& request, StopAction action, bool begun) {
  std::string who = stop_name(request.signal);
  if (request.rank >= 0) who += fmt::format(" to rank {}", request.rank);
  if (action == StopAction::kFinish)
    return fmt::format(
        "{}: finishing the step and saving; {}", who,
        request.signal == SIGINT ? "Ctrl-C again stops at once" : "Ctrl-C stops at once");
  if (action == StopAction::kNone) return "";
  return begun
             ? fmt::format("{}: stopped at once; what came after the last checkpoint is lost", who)
             : fmt::format("{}: stopped before the first step; there is nothing to save", who);
}

}  // namespace tutti
