// Work in a child process with a time limit: for what may hang or crash (a driver), or would keep
// this process from forking afterwards (CUDA).
#pragma once

#include <string>

#include "base/function_ref.h"

namespace tutti {

struct ChildAnswer {
  enum class End { kAnswered, kThrew, kDied };
  End end = End::kDied;
  /// what the work returned; the words of an exception; or "no answer within 60 s", "killed by
  /// signal 11"
  std::string text;
  bool ok() const { return end == End::kAnswered; }
};

/// Runs work() in a fork of this process, which dies with this one, and returns its answer after at
/// most about `seconds`. The child has only the calling thread, so call this before other threads
/// hold locks that work() needs (before ATen's or OpenMP's threads have started). Throws Error
/// where the process cannot be started.
ChildAnswer in_child(FunctionRef<std::string()> work, double seconds);

}  // namespace tutti
