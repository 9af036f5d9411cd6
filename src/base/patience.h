// How long to wait for others whose work may take any time: a checkpoint, a large file that is
// read, an evaluation. A deadline would give up on ranks that are busy; no deadline would wait for
// ranks that hang. So the wait ends only after a stretch of silence in which nobody showed that it
// got on with its work.
#pragma once

#include <functional>

#include "base/wait.h"

namespace tutti {

class Patience {
 public:
  /// Waits until the deadline and no longer.
  Patience(Deadline deadline) : deadline_(deadline) {}  // NOLINT(google-explicit-constructor)
  /// Waits until `silence` has passed in which `signs` (a count of signs of work, of everybody that
  /// may be waited for) did not change. The clock must outlive it.
  Patience(const Clock& clock, Duration silence, std::function<uint64_t()> signs)
      : clock_(&clock),
        silence_(silence),
        signs_(std::move(signs)),
        seen_(signs_()),
        deadline_(clock.after(silence)) {}

  Deadline deadline() const { return deadline_; }
  /// Asked when the deadline has passed. True: there were signs of work before it, and there is a
  /// further deadline.
  bool extend() {
    if (clock_ == nullptr) return false;
    const uint64_t now = signs_();
    if (now == seen_) return false;
    seen_ = now;
    deadline_ = clock_->after(silence_);
    return true;
  }

 private:
  const Clock* clock_ = nullptr;
  Duration silence_{};
  std::function<uint64_t()> signs_;
  uint64_t seen_ = 0;
  Deadline deadline_;
};

}  // namespace tutti
