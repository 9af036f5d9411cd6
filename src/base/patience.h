// How long to wait for others whose work may take any time: a checkpoint, a large file that is
// read, an evaluation. A deadline would give up on ranks that are busy; no deadline would wait for
// ranks that hang. So the wait ends only after a stretch of silence in which nobody showed that it
// got on with its work.
#pragma once

#include <algorithm>
#include <functional>

#include "base/wait.h"

namespace tutti {

class Patience {
 public:
  /// Waits until the deadline and no longer.
  Patience(Deadline deadline) : deadline_(deadline) {}  // NOLINT(google-explicit-constructor)
  /// Waits until `silence` has passed in which `signs` (a count of signs of work, of everybody that
  /// may be waited for) did not change, and up to an eighth longer: so often is it looked at. The
  /// clock must outlive it.
  Patience(const Clock& clock, Duration silence, std::function<uint64_t()> signs)
      : clock_(&clock), silence_(silence), signs_(std::move(signs)) {
    look();
  }

  /// When to ask extend(). It is not the end of the wait.
  Deadline deadline() const { return deadline_; }
  /// Asked when the deadline has passed. True: there is a further deadline, since the silence has
  /// not lasted long enough.
  bool extend() {
    if (clock_ == nullptr) return false;
    if (signs_() != seen_) {
      look();
    } else if (clock_->passed({quiet_since_ + silence_})) {
      return false;
    }
    deadline_ = {std::min(clock_->awake() + silence_ / kLooks, quiet_since_ + silence_)};
    return true;
  }
  /// The whole time from now on, for a part of the wait that no sign of work may lengthen.
  Deadline strict() const { return clock_ == nullptr ? deadline_ : clock_->after(silence_); }

 private:
  static constexpr int kLooks = 8;  // in a silence

  void look() {
    seen_ = signs_();
    quiet_since_ = clock_->awake();
    deadline_ = {quiet_since_ + silence_ / kLooks};
  }

  const Clock* clock_ = nullptr;
  Duration silence_{};
  std::function<uint64_t()> signs_;
  uint64_t seen_ = 0;
  Time quiet_since_{};  // at the latest
  Deadline deadline_;
};

}  // namespace tutti
