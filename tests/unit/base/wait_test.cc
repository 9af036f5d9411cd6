#include "base/wait.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace {

using namespace std::chrono_literals;

constexpr Duration kLong = 60s;  // ends a test that would hang; never reached

/// A T in memory that forked children share.
template <typename T>
class Shared {
 public:
  Shared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Shared() { munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  // all zeros is a valid value of what is tested here
  T* operator->() { return static_cast<T*>(memory_); }
  T& operator*() { return *static_cast<T*>(memory_); }

 private:
  void* memory_;
};

/// Runs `body` in a forked child; its return value is the child's exit code.
template <typename F>
pid_t in_child(F body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

int exit_code(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Word {
  Signal signal;
  std::atomic<uint64_t> value;
  Signal back;
  std::atomic<uint64_t> answer;
  Cancel cancel;
};

}  // namespace

class WaitWithSpin : public testing::TestWithParam<Duration> {
 protected:
  SystemClock clock{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Spin, WaitWithSpin, testing::Values(0us, 20us));

TEST_P(WaitWithSpin, ReturnsAtOnceWhenReady) {
  Signal signal;
  EXPECT_EQ(clock.wait(
                signal, [] { return true; }, Deadline::never(), nullptr),
            WaitResult::kReady);
}

TEST_P(WaitWithSpin, ReadyWinsOverAPassedDeadlineAndACancel) {
  Signal signal;
  Cancel cancel;
  cancel.cancel("over");
  const Deadline past{clock.now() - 1s};
  EXPECT_EQ(clock.wait(
                signal, [] { return true; }, past, &cancel),
            WaitResult::kReady);
  EXPECT_EQ(clock.wait(
                signal, [] { return false; }, past, &cancel),
            WaitResult::kCancelled);
  EXPECT_EQ(clock.wait(
                signal, [] { return false; }, past, nullptr),
            WaitResult::kTimedOut);
}

TEST_P(WaitWithSpin, TimesOutNotBeforeItsDeadline) {
  Signal signal;
  for (Duration d : {Duration(1ms), Duration(Clock::kSlice + 10ms)}) {
    const Deadline deadline = clock.after(d);
    EXPECT_EQ(clock.wait(
                  signal, [] { return false; }, deadline, nullptr),
              WaitResult::kTimedOut);
    EXPECT_GE(clock.now(), deadline.at);
  }
  EXPECT_EQ(signal.sleepers, 0u);
}

TEST_P(WaitWithSpin, SleepLastsItsTimeUnlessCancelled) {
  const Time begin = clock.now();
  EXPECT_EQ(clock.sleep(3ms, nullptr), WaitResult::kTimedOut);
  EXPECT_GE(clock.now() - begin, 3ms);
  Cancel cancel;
  std::thread other([&] { cancel.cancel("now"); });
  EXPECT_EQ(clock.sleep(kLong, &cancel), WaitResult::kCancelled);
  other.join();
}

TEST_P(WaitWithSpin, ACancelEndsTheWaitsOfAllThreads) {
  Signal signal;
  Cancel cancel;
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      if (clock.wait(
              signal, [] { return false; }, clock.after(kLong), &cancel) == WaitResult::kCancelled)
        ++cancelled;
    });
  }
  cancel.cancel("rank 2 was killed");
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cancelled, 3);
}

TEST_P(WaitWithSpin, AMissedNotifyCostsASliceNotAHang) {
  Signal signal;
  std::atomic<bool> flag{false};
  std::thread silent([&] { flag = true; });  // breaks the rule: no notify
  EXPECT_EQ(clock.wait(
                signal, [&] { return flag.load(); }, clock.after(kLong), nullptr),
            WaitResult::kReady);
  silent.join();
}

TEST_P(WaitWithSpin, AWaitThatThrowsIsNoLongerCountedAsASleeper) {
  Signal signal;
  const auto ready = [&]() -> bool {
    if (signal.sleepers == 1) throw Error("ready failed");
    return false;
  };
  EXPECT_THROW(clock.wait(signal, ready, clock.after(kLong), nullptr), Error);
  EXPECT_EQ(signal.sleepers, 0u);
}

TEST(AwakeTime, IsTheTimeWhileSomebodyLooks) {
  const Time start(1000s);
  AwakeTime awake(start);
  for (Time now = start; now < start + 10s; now += Clock::kLongSlice)
    EXPECT_EQ(awake.look(now), now);
}

TEST(AwakeTime, LeavesOutAStopThatIsLongerThanTheTimeBetweenLooks) {
  const Time start(1000s);
  AwakeTime awake(start);
  EXPECT_EQ(awake.look(start + 3600s), start + AwakeTime::kMostBetweenLooks);
  EXPECT_EQ(awake.look(start + 3600s + 5ms), start + AwakeTime::kMostBetweenLooks + 5ms);
  EXPECT_EQ(awake.look(start + 7200s), start + 2 * AwakeTime::kMostBetweenLooks)
      << "the look after 5 ms is too close to be noted";
}

TEST(AwakeTime, IsTheSameForAllThreadsAfterAStop) {
  const Time start(1000s);
  for (int turn = 0; turn < 200; ++turn) {
    AwakeTime awake(start);
    std::atomic<int> late{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back(
          [&] { late += awake.look(start + 60s) > start + AwakeTime::kMostBetweenLooks ? 1 : 0; });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(late, 0);
  }
}

// Each turn begins when the other side is counted asleep, so every one needs its wake. A lost wake
// costs a slice; if they were lost, the turns would take longer than the deadline, which is far
// above what they need on a busy machine.
constexpr uint64_t kTurns = 400;
constexpr Duration kWithoutWakes = kTurns * Clock::kSlice;

bool answer_turns(SystemClock& clock, Word& word, Deadline deadline) {
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    const auto come = [&] { return word.value.load(std::memory_order_acquire) >= turn; };
    if (clock.wait(word.signal, come, deadline, nullptr) != WaitResult::kReady) return false;
    word.answer.store(turn, std::memory_order_release);
    clock.notify(word.back);
  }
  return true;
}

bool ask_turns(SystemClock& clock, Word& word, Deadline deadline) {
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    while (word.signal.sleepers == 0 && clock.now() < deadline.at) std::this_thread::yield();
    word.value.store(turn, std::memory_order_release);
    clock.notify(word.signal);
    const auto answered = [&] { return word.answer.load(std::memory_order_acquire) >= turn; };
    if (clock.wait(word.back, answered, deadline, nullptr) != WaitResult::kReady) return false;
  }
  return true;
}

TEST_P(WaitWithSpin, TwoThreadsHandAWordBackAndForthWithoutLosingAWake) {
  Word word{};
  const Deadline deadline = clock.after(kWithoutWakes * 3 / 4);
  bool answered = false;
  std::thread other([&] { answered = answer_turns(clock, word, deadline); });
  EXPECT_TRUE(ask_turns(clock, word, deadline));
  other.join();
  EXPECT_TRUE(answered);
}

TEST_P(WaitWithSpin, TwoProcessesHandAWordBackAndForthThroughSharedMemory) {
  Shared<Word> word;
  const Deadline deadline = clock.after(kWithoutWakes * 3 / 4);
  const pid_t child = in_child([&] { return answer_turns(clock, *word, deadline) ? 0 : 1; });
  EXPECT_TRUE(ask_turns(clock, *word, deadline));
  EXPECT_EQ(exit_code(child), 0);
}

TEST_P(WaitWithSpin, ManyThreadsThatNotifyAtOnceLoseNothing) {
  Signal signal;
  std::atomic<uint64_t> count{0};
  constexpr uint64_t kEach = 2000, kThreads = 4;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kEach; ++i) {
        count.fetch_add(1, std::memory_order_release);
        clock.notify(signal);
      }
    });
  }
  for (uint64_t wanted : {uint64_t{1}, kEach, kThreads * kEach}) {
    EXPECT_EQ(clock.wait(
                  signal, [&] { return count.load() >= wanted; }, clock.after(kLong), nullptr),
              WaitResult::kReady);
  }
  for (auto& thread : threads) thread.join();
}

TEST(Cancel, OfAnotherProcessEndsTheWaitAndTellsTheReason) {
  Shared<Word> word;
  SystemClock clock;
  const pid_t waiter = in_child([&] {
    SystemClock own;
    const auto result = own.wait(
        word->signal, [] { return false; }, own.after(kLong), &word->cancel);
    return result == WaitResult::kCancelled && word->cancel.reason() == "rank 1 was killed" ? 0 : 1;
  });
  // The child is asleep, not just about to be, before the other one cancels.
  EXPECT_EQ(clock.wait(
                word->back, [&] { return word->signal.sleepers.load() == 1; }, clock.after(kLong),
                nullptr),
            WaitResult::kReady);
  const pid_t canceller = in_child([&] {
    word->cancel.cancel("rank 1 was killed");
    return 0;
  });
  EXPECT_EQ(exit_code(canceller), 0);
  EXPECT_EQ(exit_code(waiter), 0);
  EXPECT_TRUE(word->cancel.cancelled());
}

TEST(Cancel, TheFirstOfManyProcessesWinsWhole) {
  Shared<Word> word;
  std::vector<pid_t> children;
  for (char c : std::string("abcd")) {
    children.push_back(in_child([&, c] {
      word->cancel.cancel(std::string(500, c));
      return 0;
    }));
  }
  for (pid_t child : children) EXPECT_EQ(exit_code(child), 0);
  ASSERT_TRUE(word->cancel.cancelled());
  const std::string reason = word->cancel.reason();
  EXPECT_EQ(reason, std::string(500, reason.at(0)));
}

TEST(Cancel, HasNoReasonBeforeAndCutsATooLongOne) {
  Cancel cancel;
  EXPECT_FALSE(cancel.cancelled());
  EXPECT_EQ(cancel.reason(), "");
  cancel.cancel(std::string(5000, 'x'));
  cancel.cancel("too late");
  EXPECT_EQ(cancel.reason(), std::string(Cancel::kReasonBytes - 1, 'x'));
}

TEST(WaitFd, WakesForADescriptorAndTimesOutWithoutOne) {
  SystemClock clock;
  Fd poll(epoll_create1(0)), event(eventfd(0, EFD_NONBLOCK));
  epoll_event interest{EPOLLIN, {}};
  ASSERT_EQ(epoll_ctl(poll.get(), EPOLL_CTL_ADD, event.get(), &interest), 0);
  const Deadline soon = clock.after(3ms);
  EXPECT_EQ(clock.wait_fd(poll.get(), soon), WaitResult::kTimedOut);
  EXPECT_GE(clock.now(), soon.at);
  std::thread other([&] { eventfd_write(event.get(), 1); });
  EXPECT_EQ(clock.wait_fd(poll.get(), Deadline::never()), WaitResult::kReady);
  other.join();
  EXPECT_EQ(epoll_wait(poll.get(), &interest, 1, 0), 1);
}

}  // namespace tutti
