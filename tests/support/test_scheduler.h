// A virtual clock under which threads take turns, so that a whole job of several ranks is a
// function of a seed.
//
//   turns    one thread runs at a time and hands over only inside wait(); the seed decides which
//            runnable one goes on
//   time     stands still while a thread can run; otherwise jumps to the earliest deadline
//   ends     nothing runnable and no deadline is a deadlock: every wait throws Deadlock with a list
//            of who waits
//
// A waiter is looked at again after a notify of its signal, a cancel or its deadline, as with the
// real clock. One that was ready though nobody notified it goes on after kSlice of virtual time,
// also as with the real clock, and is counted: missed_notifies().
//
// Threads of the test are made with spawn(); those that the code under test makes are announced
// with guest(), by the thread that is about to cause them, and begin by calling the function that
// guest() returned. Once all spawned threads have ended, run() returns and guests that are left run
// freely, so that their owners can join them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/wait.h"

namespace tutti::test {

class Deadlock : public Error {
 public:
  using Error::Error;
};

class TestScheduler final : public Clock {
 public:
  explicit TestScheduler(uint64_t seed) : draws_{seed, Purpose::kTest, 0, 0} {}
  ~TestScheduler() override {
    {
      Lock lock(mutex_);
      stop("");
    }
    for (auto& task : tasks_) {
      if (task->thread.joinable()) task->thread.join();
    }
  }
  TestScheduler(const TestScheduler&) = delete;
  TestScheduler& operator=(const TestScheduler&) = delete;

  /// A thread that takes part from run() on. `name` stands in listings and in the log.
  void spawn(std::string name, std::function<void()> body);
  /// Announces a thread that somebody else makes; the result must be called first on it.
  std::function<void()> guest(std::string name);
  /// Lets the threads take turns until all spawned ones have ended; then throws what the first of
  /// them threw, if one did.
  void run();

  Time now() const override { return Time(Duration(now_.load())); }
  WaitResult wait(Signal& signal, FunctionRef<bool()> ready, Deadline deadline,
                  const Cancel* cancel) override;
  void notify(Signal& signal) override { signal.sequence.fetch_add(1); }
  WaitResult wait_fd(int, Deadline) override {
    throw Error("a virtual clock cannot wait for a descriptor");
  }

  /// Appends "<virtual ns> <thread>: <text>" until run() is over. The log of a run is a function of
  /// the seed.
  void record(const std::string& text);
  const std::vector<std::string>& log() const { return log_; }
  /// A hash of who had which turn at what time: finer than any log.
  uint64_t fingerprint() const { return fingerprint_; }
  uint64_t turns() const { return turns_; }
  uint64_t missed_notifies() const { return missed_notifies_; }

 private:
  struct Task {
    std::string name;
    bool guest = false, arrived = false, done = false;
    bool turn = false;  // may run
    // set while in wait(); runnable without it (at its beginning)
    FunctionRef<bool()>* ready = nullptr;
    Signal* signal = nullptr;
    uint32_t seen = 0;  // the signal's sequence when ready() was last false
    Deadline deadline;
    const Cancel* cancel = nullptr;
    std::condition_variable wake;
    std::function<void()> body;
    std::exception_ptr failure;
    std::thread thread;
  };
  /// Ends the membership of a guest when its thread ends.
  struct Membership {
    TestScheduler* scheduler = nullptr;
    Task* task = nullptr;
    ~Membership() {
      if (scheduler != nullptr) scheduler->leave(*task);
    }
  };
  static Membership& membership() {
    static thread_local Membership mine;
    return mine;
  }
  using Lock = std::unique_lock<std::mutex>;

  Task& add(std::string name, bool guest);
  void await_turn(Task& task, Lock& lock) {
    task.wake.wait(lock, [&] { return task.turn || free_; });
  }
  void enter(Task& task);
  void leave(Task& task);
  void hand_over(Lock& lock);
  Task* pick(Lock& lock);
  bool all_ended() const;
  bool runnable(Task& task);
  bool advance();
  void stop(std::string why);
  std::string listing() const;
  WaitResult wait_freely(FunctionRef<bool()> ready, const Cancel* cancel);

  static constexpr uint64_t kMostTurns = 20'000'000;  // a livelock
  std::mutex mutex_;
  std::condition_variable changed_;  // arrivals and ends
  PhiloxKey draws_;
  std::vector<std::unique_ptr<Task>> tasks_;  // in order of announcement
  std::atomic<int64_t> now_{0};
  bool free_ = false;     // after run(), or after a deadlock
  std::string deadlock_;  // the listing
  std::exception_ptr first_failure_;
  uint64_t turns_ = 0, fingerprint_ = 0, missed_notifies_ = 0;
  std::vector<std::string> log_;
};

inline TestScheduler::Task& TestScheduler::add(std::string name, bool guest) {
  tasks_.push_back(std::make_unique<Task>());
  tasks_.back()->name = std::move(name);
  tasks_.back()->guest = guest;
  return *tasks_.back();
}

inline void TestScheduler::spawn(std::string name, std::function<void()> body) {
  Lock lock(mutex_);
  Task& task = add(std::move(name), false);
  task.body = std::move(body);
  task.thread = std::thread([this, &task] {
    enter(task);
    try {
      task.body();
    } catch (...) {
      Lock failing(mutex_);
      task.failure = std::current_exception();
      if (!first_failure_) first_failure_ = task.failure;
    }
  });
}

inline std::function<void()> TestScheduler::guest(std::string name) {
  Lock lock(mutex_);
  return [this, task = &add(std::move(name), true)] { enter(*task); };
}

inline void TestScheduler::enter(Task& task) {
  Lock lock(mutex_);
  task.arrived = true;
  membership().scheduler = this;
  membership().task = &task;
  changed_.notify_all();
  await_turn(task, lock);
}

inline void TestScheduler::leave(Task& task) {
  Lock lock(mutex_);
  task.done = true;
  const bool had_turn = task.turn;
  task.turn = false;
  changed_.notify_all();
  if (all_ended()) {
    stop("");
  } else if (had_turn) {
    hand_over(lock);
  }
}

inline bool TestScheduler::all_ended() const {
  return std::all_of(tasks_.begin(), tasks_.end(),
                     [](const auto& task) { return task->guest || task->done; });
}

inline void TestScheduler::run() {
  {
    Lock lock(mutex_);
    if (!all_ended()) hand_over(lock);
    changed_.wait(lock, [&] { return all_ended(); });
    stop("");
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i]->thread.joinable()) tasks_[i]->thread.join();
  }
  if (!deadlock_.empty()) throw Deadlock(deadlock_);
  if (first_failure_) std::rethrow_exception(first_failure_);
}

inline WaitResult TestScheduler::wait(Signal& signal, FunctionRef<bool()> ready, Deadline deadline,
                                      const Cancel* cancel) {
  Task* task = membership().scheduler == this ? membership().task : nullptr;
  Lock lock(mutex_);
  if (!free_) {
    TUTTI_CHECK(task != nullptr, "a thread that does not take turns waits on the test scheduler");
    task->ready = &ready;
    task->signal = &signal;
    task->deadline = deadline;
    task->cancel = cancel;
    task->seen = signal.sequence.load() - 1;  // to be looked at
    while (!free_) {
      task->turn = false;
      hand_over(lock);
      await_turn(*task, lock);
      if (free_) break;
      task->seen = signal.sequence.load();
      const bool cancelled = cancel != nullptr && cancel->cancelled();
      const bool late = now() >= deadline.at;
      if (ready()) return WaitResult::kReady;
      if (cancelled) return WaitResult::kCancelled;
      if (late) return WaitResult::kTimedOut;
    }
  }
  if (!deadlock_.empty() && !ready()) throw Deadlock(deadlock_);
  lock.unlock();
  return wait_freely(ready, cancel);
}

/// Real time: only for what is left to do after the run.
inline WaitResult TestScheduler::wait_freely(FunctionRef<bool()> ready, const Cancel* cancel) {
  while (!ready()) {
    if (cancel != nullptr && cancel->cancelled()) return WaitResult::kCancelled;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return WaitResult::kReady;
}

/// Gives the turn to the next thread, which may be the caller.
inline void TestScheduler::hand_over(Lock& lock) {
  Task* next = pick(lock);
  if (next == nullptr) return;
  next->turn = true;
  next->wake.notify_all();
}

inline TestScheduler::Task* TestScheduler::pick(Lock& lock) {
  const auto all_arrived = [&] {
    return std::all_of(tasks_.begin(), tasks_.end(),
                       [](const auto& task) { return task->arrived; });
  };
  // An announced thread counts from its announcement on, whenever the system gets round to starting
  // it.
  if (!changed_.wait_for(lock, std::chrono::seconds(30), all_arrived)) {
    stop("an announced thread never came");
    return nullptr;
  }
  std::vector<Task*> choice;
  while (!free_) {
    for (auto& task : tasks_) {
      if (runnable(*task)) choice.push_back(task.get());
    }
    if (!choice.empty()) break;
    if (!advance()) return nullptr;
  }
  if (free_) return nullptr;
  if (turns_ >= kMostTurns) {
    stop("a livelock");
    return nullptr;
  }
  const uint64_t drawn = philox_below(draws_, turns_++, choice.size());
  Task* next = choice[drawn];
  fingerprint_ = hash64(fmt::format("{} {} {}", fingerprint_, next->name, now_.load()));
  return next;
}

inline bool TestScheduler::runnable(Task& task) {
  if (task.done) return false;
  if (task.ready == nullptr) return true;
  if (now() >= task.deadline.at || (task.cancel != nullptr && task.cancel->cancelled()))
    return true;
  const uint32_t sequence = task.signal->sequence.load();
  if (sequence == task.seen) return false;
  // On the thread that hands over, not on the waiting one: nobody else runs, and it saves a turn.
  // The waiter asks again.
  try {
    if ((*task.ready)()) return true;
  } catch (...) {
    return true;  // it will throw again, on its own thread
  }
  task.seen = sequence;
  return false;
}

/// Moves time on; false when there is nothing to move it to.
inline bool TestScheduler::advance() {
  Time next = Time::max();
  for (auto& task : tasks_) {
    if (task->done) continue;
    next = std::min(next, task->deadline.at);
    if ((*task->ready)()) {
      ++missed_notifies_;
      task->seen = task->signal->sequence.load() - 1;
      next = std::min(next, now() + kSlice);
    }
  }
  if (next == Time::max()) {
    stop("a deadlock");
    return false;
  }
  now_ = std::max(now(), next).time_since_epoch().count();
  return true;
}

inline std::string TestScheduler::listing() const {
  std::string text;
  for (const auto& task : tasks_) {
    if (task->done) continue;
    text +=
        fmt::format("\n  {}{}", task->name, task->ready == nullptr ? " has not begun" : " waits");
    if (task->ready != nullptr && task->deadline.at != Time::max()) {
      text += fmt::format(" until {} ns", task->deadline.at.time_since_epoch().count());
    }
  }
  return text;
}

/// From here on nobody takes turns. With a reason: waits throw it.
inline void TestScheduler::stop(std::string why) {
  if (free_) return;
  free_ = true;
  if (!why.empty())
    deadlock_ = fmt::format("{} at {} ns of virtual time:{}", why, now_.load(), listing());
  for (auto& task : tasks_) task->wake.notify_all();
}

inline void TestScheduler::record(const std::string& text) {
  Lock lock(mutex_);
  if (free_) return;
  const Task* task = membership().scheduler == this ? membership().task : nullptr;
  log_.push_back(fmt::format("{} {}: {}", now_.load(), task == nullptr ? "-" : task->name, text));
}

}  // namespace tutti::test
