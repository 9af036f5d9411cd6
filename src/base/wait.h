// The one wait primitive. Every blocking point of the program (queues between threads, words in
// shared memory, sockets, timers) goes through a Clock, so that nothing waits without an end, and a
// test can control all of time from a seed.
//
//   Signal   a word that somebody waits on; it may be in shared memory (all zeros is valid)
//   Cancel   why everybody must stop waiting; it may be in shared memory (all zeros is "not
//            cancelled")
//   Clock    now(), wait(), notify(); SystemClock is the real one, and tests have their own in
//            tests/support/test_scheduler.h
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/function_ref.h"

namespace tutti {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// The value of a clock's awake() after which a wait gives up. Deadlines are absolute, so they can
/// be handed down through calls.
struct Deadline {
  Time at = Time::max();
  static Deadline never() { return {}; }
};

/// What a waiter sleeps on. `sequence` grows with every notify; `sleepers` lets notify skip the
/// system call if nobody sleeps.
struct Signal {
  std::atomic<uint32_t> sequence{0};
  std::atomic<uint32_t> sleepers{0};
};

/// Set once, by whoever first learns that the run cannot go on. Every wait of every rank that
/// shares it then returns.
class Cancel {
 public:
  static constexpr size_t kReasonBytes = 1016;
  bool cancelled() const { return state_.load(std::memory_order_acquire) == kSet; }
  /// The first call wins; later ones do nothing. Safe between threads and processes.
  void cancel(const std::string& reason);
  /// The reason given to cancel(), as far as it fits; "" before.
  std::string reason() const;

 private:
  static constexpr uint32_t kUnset = 0, kWriting = 1, kSet = 2;
  std::atomic<uint32_t> state_{0};
  char reason_[kReasonBytes] = {};
};

enum class WaitResult { kReady, kTimedOut, kCancelled };

/// Time, and waiting. All members are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  /// The same for all processes of the host: for measuring, and for comparing times between ranks.
  virtual Time now() const = 0;
  /// now() without the time in which this process was stopped (Ctrl-Z, a freezer): deadlines are
  /// made and judged by it. A process that slept must not blame others for not having answered
  /// meanwhile. If it was stopped while others were not, they give it up: their time went on.
  virtual Time awake() const { return now(); }

  /// Blocks until ready() is true, the deadline passes, or `cancel` (if given) is set. ready() is
  /// called on the waiting thread (a test scheduler may call it on another one while the waiter
  /// stands still) and must be cheap and free of side effects. Whoever makes it true calls
  /// notify(signal) afterwards. If ready() is true it wins over a deadline that has passed and a
  /// cancel that is set. A missed notify costs at most a slice, never a hang: sleeps are cut into
  /// slices, which are short if there is a cancel, since that notifies nobody.
  virtual WaitResult wait(Signal& signal, FunctionRef<bool()> ready, Deadline deadline,
                          const Cancel* cancel) = 0;
  virtual void notify(Signal& signal) = 0;

  /// Blocks until one of the file descriptors of the epoll instance is ready (the caller then
  /// fetches its events with epoll_wait(.., 0)), or until the deadline passes. Only for I/O
  /// threads; a virtual clock refuses it.
  virtual WaitResult wait_fd(int epoll_fd, Deadline deadline) = 0;

  Deadline after(Duration d) const { return {awake() + d}; }
  bool passed(Deadline deadline) const { return awake() >= deadline.at; }

  /// Sleeps for d, or until cancelled.
  WaitResult sleep(Duration d, const Cancel* cancel);

  static constexpr Duration kSlice = std::chrono::milliseconds(50),
                            kLongSlice = std::chrono::milliseconds(200);
};

/// Works out the time awake from the times at which a process looked at its clock. A process that
/// runs looks every few milliseconds, or every Clock::kLongSlice while all of its threads wait.
/// Between two looks that are further apart it was stopped, or had no core, and no more than
/// kMostBetweenLooks of that time counts. Thread-safe.
class AwakeTime {
 public:
  static constexpr Duration kMostBetweenLooks = 2 * Clock::kLongSlice;
  explicit AwakeTime(Time start) : looked_(start) {}
  /// The time awake at the moment `now`, which is not before the start.
  Time look(Time now);

 private:
  // Looks that are closer together write nothing, so that threads do not contend.
  static constexpr Duration kTick = std::chrono::milliseconds(10);
  std::mutex mutex_;
  std::atomic<Time> looked_;
  std::atomic<Duration> slept_{Duration{0}};
};

/// The real clock. A wait spins for `spin`, then yields, then sleeps on a futex, which works
/// across processes. Thread-safe.
class SystemClock final : public Clock {
 public:
  explicit SystemClock(Duration spin = std::chrono::microseconds(20))
      : spin_(spin), awake_(now()) {}
  Time now() const override;
  Time awake() const override { return awake_.look(now()); }
  WaitResult wait(Signal& signal, FunctionRef<bool()> ready, Deadline deadline,
                  const Cancel* cancel) override;
  void notify(Signal& signal) override;
  WaitResult wait_fd(int epoll_fd, Deadline deadline) override;

 private:
  Duration spin_;
  mutable AwakeTime awake_;
};

}  // namespace tutti
