// Waits on a word: first by looking, then by yielding, then asleep on a futex.
//
// Why no wake is lost: a waiter counts itself in `sleepers`, then reads `sequence`, then looks at
// ready() once more, then sleeps only if `sequence` is still what it read. A notifier publishes,
// then raises `sequence`, then looks at `sleepers`. All four are sequentially consistent, so a
// notifier that sees no sleeper raised `sequence` before the waiter read it: the waiter's last look
// at ready() then sees what was published.
#include "base/wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/error.h"

namespace tutti {

namespace {

// More yields would leave a busy core to others for milliseconds each.
constexpr int kYields = 2;
constexpr int kLooksPerTimeCheck = 16;  // reading the clock costs about as much as these

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

timespec to_timespec(Duration d) {
  const int64_t ns = std::max<int64_t>(d.count(), 0);
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

// Shared, not private: the word may be in memory that several processes map.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Duration at_most) {
  const timespec time = to_timespec(at_most);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Counted among the sleepers while it lives, also when ready() throws.
class Asleep {
 public:
  explicit Asleep(Signal& signal) : signal_(signal) {
    signal_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Asleep() { signal_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  Signal& signal_;
};

}  // namespace

void Cancel::cancel(const std::string& reason) {
  uint32_t expected = kUnset;
  if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) return;

  // The reason is published by the store of kSet: nobody reads it while it is being written.
  const size_t n = std::min(reason.size(), kReasonBytes - 1);
  std::memcpy(reason_, reason.data(), n);
  reason_[n] = '\0';
  state_.store(kSet, std::memory_order_release);
}

std::string Cancel::reason() const {
  return cancelled() ? std::string(reason_, strnlen(reason_, kReasonBytes)) : std::string();
}

WaitResult Clock::sleep(Duration d, const Cancel* cancel) {
  Signal nobody;
  return wait(
      nobody, [] { return false; }, after(d), cancel);
}

Time SystemClock::now() const {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

Time AwakeTime::look(Time now) {
  if (now - looked_.load(std::memory_order_acquire) > kTick) {
    // The time slept is published before the look that found it, so a thread that sees the look
    // subtracts the sleep.
    std::lock_guard lock(mutex_);
    const Duration between = now - looked_.load(std::memory_order_relaxed);
    if (between > kMostBetweenLooks)
      slept_.store(slept_.load(std::memory_order_relaxed) + between - kMostBetweenLooks,
                   std::memory_order_relaxed);
    if (between > Duration{0}) looked_.store(now, std::memory_order_release);
  }
  return now - slept_.load(std::memory_order_relaxed);
}

WaitResult SystemClock::wait(Signal& signal, FunctionRef<bool()> ready, Deadline deadline,
                             const Cancel* cancel) {
  // From cheap to dear: look, spin, yield, sleep. Most waits end before the sleep.
  if (ready()) return WaitResult::kReady;

  const Time spin_until = now() + spin_;
  for (bool spinning = spin_.count() > 0; spinning; spinning = now() < spin_until) {
    for (int i = 0; i < kLooksPerTimeCheck; ++i) {
      pause();
      if (ready()) return WaitResult::kReady;
    }
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (ready()) return WaitResult::kReady;
  }

  // A cancel notifies nobody, so it is looked at once per slice.
  const Duration slice = cancel != nullptr ? kSlice : kLongSlice;
  Asleep counted(signal);
  while (true) {
    // The order matters: what could end the wait is read before the last look at ready(), which
    // wins over both.
    const uint32_t seen = signal.sequence.load(std::memory_order_seq_cst);
    const bool stop = cancel != nullptr && cancel->cancelled();
    const Time time = awake();
    if (ready()) return WaitResult::kReady;
    if (stop) return WaitResult::kCancelled;
    if (time >= deadline.at) return WaitResult::kTimedOut;
    futex_wait(signal.sequence, seen, std::min(slice, deadline.at - time));
  }
}

void SystemClock::notify(Signal& signal) {
  signal.sequence.fetch_add(1, std::memory_order_seq_cst);
  if (signal.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(signal.sequence);
}

WaitResult SystemClock::wait_fd(int epoll_fd, Deadline deadline) {
  // An epoll instance is itself readable while it has events. Polling it leaves them for the
  // caller to fetch.
  pollfd watched{epoll_fd, POLLIN, 0};
  while (true) {
    const bool endless = deadline.at == Time::max();
    const Duration left = endless ? Duration{0} : deadline.at - awake();
    const timespec slice = to_timespec(std::min(left, kLongSlice));
    const int n = ppoll(&watched, 1, endless ? nullptr : &slice, nullptr);
    if (n > 0) return WaitResult::kReady;
    if (n == 0 && left <= Duration{0}) return WaitResult::kTimedOut;
    TUTTI_CHECK(n == 0 || errno == EINTR, "ppoll on descriptor {}: {}", epoll_fd,
                std::strerror(errno));
  }
}

}  // namespace tutti
