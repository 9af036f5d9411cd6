// The two threads share two counters, and an error that is published by a flag. Each side waits for
// the other's counter through the clock, so that cancels and stops are noticed.
#include "data/load/read_ahead.h"

#include "base/error.h"

namespace tutti {

ReadAhead::ReadAhead(int64_t ahead, std::function<void(int64_t item)> fill, Clock& clock,
                     const Cancel* cancel)
    : ahead_(ahead), fill_(std::move(fill)), clock_(clock), cancel_(cancel), thread_([this] {
        run();
      }) {}

ReadAhead::~ReadAhead() {
  stopping_.store(true);
  clock_.notify(emptied_);
  thread_.join();
}

void ReadAhead::run() {
  // The thread may fill as long as a place is free: empty, or of an item that nobody holds any
  // more.
  const auto room = [this] {
    return stopping_.load() || filled_.load() - released_.load() < ahead_;
  };
  // Who takes the items may compute for as long as it likes, and wakes this thread to stop it.
  try {
    while (clock_.wait(emptied_, room, Deadline::never(), cancel_) == WaitResult::kReady &&
           !stopping_.load()) {
      fill_(filled_.load());
      filled_.fetch_add(1);
      clock_.notify(ready_);
    }
  } catch (...) {
    // The error is stored before the flag, and read after it.
    error_ = std::current_exception();
    failed_.store(true);
    clock_.notify(ready_);
  }
}

void ReadAhead::await(int64_t item, int64_t step) {
  // Only a wait that really happens is counted as a stall.
  const auto there = [this, item] { return filled_.load() > item || failed_.load(); };
  if (!there()) {
    // Reading may take any time, a FIFO's writer that is not there yet included; the other ranks
    // judge by their own time-outs whether it takes too long.
    const Time begin = clock_.now();
    const WaitResult result = clock_.wait(ready_, there, Deadline::never(), cancel_);
    stalled_.fetch_add((clock_.now() - begin).count());
    if (result != WaitResult::kReady) {
      // Steps are counted from 1 for people.
      throw Error(fmt::format("waiting for the data of step {} was given up: {}", step + 1,
                              cancel_->reason()));
    }
  }

  // Items that were filled before a failure are still good; the failure counts only from its
  // item on.
  if (filled_.load() <= item) std::rethrow_exception(error_);
}

void ReadAhead::release(int64_t count) {
  released_.store(count);
  clock_.notify(emptied_);
}

}  // namespace tutti
