// What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdio>
#include <memory>

#include "base/log.h"

namespace tutti {

/// A sink for the events of train/run.h. `terminal`: redraw one line; otherwise a line now and then (about every tenth
/// of the run, and at least every 10 s).
std::unique_ptr<EventSink> make_progress(std::FILE* out, bool terminal);

}  // namespace tutti
