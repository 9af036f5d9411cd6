// Work in a process of its own: its answer, its failures, and how long it is waited for.
#include "app/apart.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

std::string fault_of(const std::function<std::string()>& work, Duration silence = 1min) {
  try {
    return "answered " + answer_apart(work, silence);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Apart, AnswersAlsoWhatDoesNotFitIntoAPipe) {
  EXPECT_EQ(answer_apart([] { return std::string(1 << 20, 'x'); }), std::string(1 << 20, 'x'));
}

TEST(Apart, TellsWhatWasThrownAndHowItDied) {
  EXPECT_EQ(fault_of([]() -> std::string { throw Error("the cat sat on it"); }),
            "the cat sat on it");
  EXPECT_NE(fault_of([] {
              ::raise(SIGKILL);
              return std::string();
            }).find("was killed by signal 9 (Killed)"),
            std::string::npos);
}

TEST(Apart, IsWaitedForAsLongAsItWorks) {
  const auto work = [] {
    SystemClock clock;
    for (const Time begin = clock.now(); clock.now() - begin < 2s;) {
    }
    return std::string("at last");
  };
  EXPECT_EQ(fault_of(work, 400ms), "answered at last");
}

TEST(Apart, IsGivenUpWhenItDoesNothing) {
  const std::string fault = fault_of(
      [] {
        ::sleep(30);
        return std::string();
      },
      400ms);
  EXPECT_TRUE(fault.ends_with(" has done nothing for 0.4 s")) << fault;
}

}  // namespace
}  // namespace tutti
