// The same work on several threads at once: what all cores do when they are measured together.
#pragma once

#include <functional>

namespace tutti {

/// Runs body(0) to body(threads - 1), each on a thread of its own and with a copy of its own, once
/// all of them have started, and returns when all have ended. Throws where they cannot all be
/// started: then none has run.
void at_once(int threads, const std::function<void(int)>& body);

}  // namespace tutti
