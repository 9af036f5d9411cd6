// What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/log.h"

namespace tutti {

/// Makes a sink for the events of train/run.h. With `terminal` it redraws one line, as wide as the
/// terminal is at the time, and shows control characters instead of writing them. Otherwise it
/// writes a line now and then (about every tenth of the run, and at least every 10 s). Output that
/// cannot be written does not end a run; it only sets the error flag of `out`.
std::unique_ptr<EventSink> make_progress(std::FILE* out, bool terminal);

/// How far a run is, and what is said about it.
struct Bar {
  double done = 0;  ///< 0 to 1
  std::string count, loss, rate, left;
};
/// One line that is shorter than `columns`, so that no terminal wraps it. With less room the bar
/// shrinks first; then go the rate, the time that is left, the bar itself, and the loss. With very
/// few columns the count takes what there is.
std::string bar_text(const Bar& bar, int columns);

}  // namespace tutti
