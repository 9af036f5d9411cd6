#include "base/patience.h"

#include <gtest/gtest.h>

#include "support/test_scheduler.h"

namespace tutti::test {

namespace {

using namespace std::chrono_literals;

/// How long a wait of 8 s of silence lasts whose peer gives its last sign of work after `busy`.
Duration wait_for(Duration busy) {
  TestScheduler scheduler(1);
  Duration waited{};
  uint64_t signs = 0;
  bool over = false;
  scheduler.spawn("peer", [&] {
    for (Duration at{}; at < busy; at += 500ms, ++signs) scheduler.sleep(500ms, nullptr);
  });
  scheduler.spawn("waiter", [&] {
    Patience patience(scheduler, 8s, [&] { return signs; });
    Signal never;
    WaitResult result;
    do {
      result = scheduler.wait(
          never, [&] { return over; }, patience.deadline(), nullptr);
    } while (result == WaitResult::kTimedOut && patience.extend());
    waited = scheduler.now().time_since_epoch();
  });
  scheduler.run();
  return waited;
}

TEST(Patience, EndsAfterTheSilenceAndNotAfterTwice) {
  EXPECT_EQ(wait_for(0s), 8s);
  for (const Duration busy : {500ms, 3000ms, 7500ms}) {
    EXPECT_GE(wait_for(busy), busy + 8s);
    EXPECT_LE(wait_for(busy), busy + 9s);
  }
}

TEST(Patience, LastsAsLongAsThereIsWork) {
  EXPECT_GE(wait_for(10min), 10min + 8s);
  EXPECT_LE(wait_for(10min), 10min + 9s);
}

TEST(Patience, OfADeadlineIsThatDeadline) {
  const TestScheduler scheduler(1);
  Patience patience(scheduler.after(3s));
  EXPECT_EQ(patience.deadline().at, scheduler.after(3s).at);
  EXPECT_EQ(patience.strict().at, scheduler.after(3s).at);
  EXPECT_FALSE(patience.extend());
}

TEST(Patience, HasAStrictPartOfTheWholeSilence) {
  const TestScheduler scheduler(1);
  const Patience patience(scheduler, 8s, [] { return uint64_t{0}; });
  EXPECT_EQ(patience.strict().at, scheduler.after(8s).at);
}

}  // namespace

}  // namespace tutti::test
