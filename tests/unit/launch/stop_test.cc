// What a signal means, by what came before it.
#include "launch/stop.h"

#include <gtest/gtest.h>

#include <csignal>

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr Time kStart(1000s);

TEST(DecideStop, TheFirstFinishesTheStepOrEndsWhatHasNotBegun) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EQ(decide_stop({signal, kStart}, {}, true), StopAction::kFinish);
    EXPECT_EQ(decide_stop({signal, kStart}, {}, false), StopAction::kAtOnce);
  }
}

TEST(DecideStop, OnlyALaterCtrlCEndsAtOnce) {
  for (int first : {SIGINT, SIGTERM, SIGHUP})
    for (int next : {SIGINT, SIGTERM, SIGHUP})
      for (const Duration between :
           {Duration(0), Duration(10us), kSecondThoughts - 1ns, kSecondThoughts, Duration(1h)}) {
        const bool at_once = next == SIGINT && between >= kSecondThoughts;
        EXPECT_EQ(decide_stop({next, kStart + between}, StopRequest{first, kStart}, true),
                  at_once ? StopAction::kAtOnce : StopAction::kNone)
            << first << " then " << next << " after " << between.count() << " ns";
      }
}

TEST(StopWords, SayWhoAskedWhatIsDoneAndWhatEndsItAtOnce) {
  EXPECT_EQ(stop_words({SIGINT, kStart}, StopAction::kFinish, true),
            "Ctrl-C: finishing the step and saving; Ctrl-C again stops at once");
  EXPECT_EQ(stop_words({SIGTERM, kStart, 3}, StopAction::kFinish, true),
            "SIGTERM to rank 3: finishing the step and saving; Ctrl-C stops at once");
  EXPECT_EQ(
      stop_words({SIGHUP, kStart}, StopAction::kAtOnce, false),
      "SIGHUP (the terminal has closed): stopped before the first step; there is nothing to save");
  EXPECT_EQ(stop_words({SIGINT, kStart}, StopAction::kAtOnce, true),
            "Ctrl-C: stopped at once; what came after the last checkpoint is lost");
}

}  // namespace
}  // namespace tutti
