#include "support/test_scheduler.h"

#include <gtest/gtest.h>

#include <set>

namespace tutti::test {

namespace {

using namespace std::chrono_literals;

/// Three threads that each take three turns; the order in which they did.
std::string order_of_turns(uint64_t seed) {
  TestScheduler scheduler(seed);
  std::string order;
  Signal signal;
  for (char name : std::string("abc")) {
    scheduler.spawn(std::string(1, name), [&, name] {
      for (int i = 0; i < 3; ++i) {
        order += name;
        scheduler.wait(
            signal, [] { return true; }, Deadline::never(), nullptr);
      }
    });
  }
  scheduler.run();
  return order;
}

}  // namespace

TEST(TestScheduler, TheSeedDecidesTheOrderOfTurns) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string order = order_of_turns(seed);
    EXPECT_EQ(order_of_turns(seed), order) << "seed " << seed;
    EXPECT_EQ(order.size(), 9u);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 30u);
}

TEST(TestScheduler, TimeJumpsToTheEarliestDeadlineWhenNobodyCanRun) {
  TestScheduler scheduler(1);
  std::vector<std::pair<char, Duration>> woken;
  for (auto [name, after] : std::map<char, Duration>{{'a', 3h}, {'b', 1h}, {'c', 2h}}) {
    scheduler.spawn(std::string(1, name), [&, name = name, after = after] {
      EXPECT_EQ(scheduler.sleep(after, nullptr), WaitResult::kTimedOut);
      woken.emplace_back(name, scheduler.now().time_since_epoch());
    });
  }
  scheduler.run();
  EXPECT_EQ(woken, (std::vector<std::pair<char, Duration>>{{'b', 1h}, {'c', 2h}, {'a', 3h}}));
}

TEST(TestScheduler, ANotifiedWaiterGoesOnBeforeTimeDoes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TestScheduler scheduler(seed);
    Signal signal;
    bool flag = false;
    scheduler.spawn("waiter", [&] {
      EXPECT_EQ(scheduler.wait(
                    signal, [&] { return flag; }, scheduler.after(1s), nullptr),
                WaitResult::kReady);
      EXPECT_EQ(scheduler.now(), Time());
    });
    scheduler.spawn("other", [&] {
      flag = true;
      scheduler.notify(signal);
    });
    scheduler.run();
    EXPECT_EQ(scheduler.missed_notifies(), 0u);
  }
}

TEST(TestScheduler, AMissedNotifyCostsASliceAndIsCounted) {
  TestScheduler scheduler(1);
  Signal signal, other;
  bool flag = false;
  scheduler.spawn("waiter", [&] {
    EXPECT_EQ(scheduler.wait(
                  signal, [&] { return flag; }, Deadline::never(), nullptr),
              WaitResult::kReady);
    EXPECT_EQ(scheduler.now(), Time(1ms + Clock::kSlice));
  });
  scheduler.spawn("forgetful", [&] {
    scheduler.sleep(1ms, nullptr);
    flag = true;
    scheduler.notify(other);
  });
  scheduler.run();
  EXPECT_EQ(scheduler.missed_notifies(), 1u);
}

TEST(TestScheduler, ACancelEndsWaitsAndReadyWinsOverIt) {
  TestScheduler scheduler(3);
  Signal signal;
  Cancel cancel;
  scheduler.spawn("waiter", [&] {
    EXPECT_EQ(scheduler.wait(
                  signal, [] { return false; }, Deadline::never(), &cancel),
              WaitResult::kCancelled);
    EXPECT_EQ(scheduler.wait(
                  signal, [] { return true; }, Deadline{Time()}, &cancel),
              WaitResult::kReady);
  });
  scheduler.spawn("canceller", [&] { cancel.cancel("enough"); });
  scheduler.run();
}

TEST(TestScheduler, ADeadlockEndsWithAListOfWhoWaits) {
  TestScheduler scheduler(1);
  Signal signal;
  for (std::string name : {"first", "second"}) {
    scheduler.spawn(name, [&] {
      scheduler.wait(
          signal, [] { return false; }, Deadline::never(), nullptr);
    });
  }
  scheduler.spawn("third", [] {});
  try {
    scheduler.run();
    FAIL() << "no deadlock was found";
  } catch (const Deadlock& deadlock) {
    EXPECT_STREQ(deadlock.what(),
                 "a deadlock at 0 ns of virtual time:\n  first waits\n  second waits");
  }
}

TEST(TestScheduler, WhatAThreadThrowsComesOutOfRun) {
  TestScheduler scheduler(1);
  scheduler.spawn("a", [] { throw Error("from a"); });
  scheduler.spawn("b", [&] { scheduler.sleep(1s, nullptr); });
  EXPECT_THROW(scheduler.run(), Error);
}

TEST(TestScheduler, GuestsTakeTurnsAndTheirOwnerCanWaitForTheirEnd) {
  std::set<uint64_t> fingerprints;
  for (int repeat = 0; repeat < 20; ++repeat) {
    TestScheduler scheduler(7);
    Signal signal;
    std::atomic<int> alive{2};
    scheduler.spawn("owner", [&] {
      std::vector<std::thread> threads;
      for (std::string name : {"guest 1", "guest 2"}) {
        threads.emplace_back([&, enter = scheduler.guest(name), name] {
          enter();
          for (int i = 0; i < 5; ++i) scheduler.sleep(1us, nullptr);
          --alive;
          scheduler.notify(signal);
        });
      }
      scheduler.wait(
          signal, [&] { return alive == 0; }, Deadline::never(), nullptr);
      for (auto& thread : threads) thread.join();
    });
    scheduler.run();
    fingerprints.insert(scheduler.fingerprint());
    EXPECT_EQ(scheduler.now(), Time(5us));
  }
  EXPECT_EQ(fingerprints.size(), 1u);
}

TEST(TestScheduler, RefusesToWaitForDescriptors) {
  TestScheduler scheduler(1);
  EXPECT_THROW(scheduler.wait_fd(0, Deadline::never()), Error);
}

}  // namespace tutti::test
