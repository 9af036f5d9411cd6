// Work in a child process: its answer, its exceptions, its death and its end by the deadline.
#include "device/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/error.h"

namespace tutti {
namespace {

using End = ChildAnswer::End;

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

TEST(Child, AnswersFromAnotherProcess) {
  const ChildAnswer answer = in_child([] { return std::to_string(::getpid()); }, 20);
  EXPECT_EQ(answer.end, End::kAnswered) << answer.text;
  EXPECT_NE(answer.text, std::to_string(::getpid()));
  EXPECT_FALSE(has_children());
}

TEST(Child, ALongAnswerComesWhole) {
  const ChildAnswer answer = in_child([] { return std::string(1 << 20, 'x'); }, 20);
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(answer.text, std::string(1 << 20, 'x'));
  EXPECT_TRUE(in_child([] { return std::string(); }, 20).ok()) << "an empty one is an answer too";
}

TEST(Child, AnExceptionArrivesInItsWords) {
  const ChildAnswer answer =
      in_child([]() -> std::string { throw Error("no card in the slot"); }, 20);
  EXPECT_EQ(answer.end, End::kThrew);
  EXPECT_EQ(answer.text, "no card in the slot");
}

TEST(Child, ACrashIsNamedByItsSignal) {
  const ChildAnswer answer = in_child(
      []() -> std::string {
        ::raise(SIGKILL);
        return "";
      },
      20);
  EXPECT_EQ(answer.end, End::kDied);
  EXPECT_EQ(answer.text, "killed by signal 9 (Killed)");
  const ChildAnswer left = in_child([]() -> std::string { ::_exit(3); }, 20);
  EXPECT_EQ(left.text, "ended with code 3");
}

TEST(Child, OneThatHangsIsKilledAndReaped) {
  const auto begin = std::chrono::steady_clock::now();
  const ChildAnswer answer = in_child(
      []() -> std::string {
        while (true) ::pause();
      },
      0.2);
  EXPECT_EQ(answer.end, End::kDied);
  EXPECT_EQ(answer.text, "no answer within 0.2 s");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_FALSE(has_children());
}

}  // namespace
}  // namespace tutti
