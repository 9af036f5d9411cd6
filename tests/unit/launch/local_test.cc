// Ranks that return, throw, die, fall silent or are asked to stop, as processes and as threads. It
// is long because there are many ways to end, and most of them are tried with both kinds of ranks.
#include "launch/local.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/stop_signals.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Waits until the run is cancelled, as every rank does that waits for a lost one.
void wait_for_cancel(RankContext& context) {
  Signal signal;
  const Time begin = context.clock.now();
  if (context.clock.wait(
          signal, [] { return false; }, context.clock.after(seconds(30)),
          &context.control.cancel) == WaitResult::kCancelled)
    throw CommError({.rank = context.rank,
                     .waited = context.clock.now() - begin,
                     .reason = context.control.cancel.reason()});
  throw Error("nobody cancelled");
}

/// As a rank in its steps does.
void wait_for_stop(RankContext& context) {
  context.begin();
  Signal signal;
  auto stopped = [&] { return context.control.stop.load() != 0; };
  if (context.clock.wait(signal, stopped, context.clock.after(seconds(30)),
                         &context.control.cancel) != WaitResult::kReady)
    throw CommError({.rank = context.rank, .reason = "was not stopped"});
}

using Failures = std::vector<std::string>;

class Launch : public testing::TestWithParam<bool> {
 protected:
  LaunchResult launch(int ranks, const std::function<void(RankContext&)>& body,
                      Duration timeout = seconds(30)) {
    return launch_local({.ranks = ranks, .threads = GetParam(), .timeout = timeout}, body);
  }
};
INSTANTIATE_TEST_SUITE_P(As, Launch, testing::Bool(),
                         [](const auto& info) { return info.param ? "Threads" : "Processes"; });

TEST_P(Launch, RunsEveryRankOnceAndHandsBackTheResult) {
  const LaunchResult result = launch(4, [](RankContext& context) {
    ASSERT_EQ(context.size, 4);
    const auto deck = context.rendezvous.exchange({std::to_string(context.rank), {}, {}},
                                                  context.clock.after(seconds(30)));
    std::string all;
    for (const Card& card : deck) all += card.bytes;
    if (context.rank == 0) std::strcpy(context.control.result, all.c_str());
  });
  EXPECT_TRUE(result.ok()) << result.failures.front();
  EXPECT_EQ(result.result, "0123");
  EXPECT_EQ(result.signal, 0);
}

TEST_P(Launch, ReportsWhatARankThrewAndEndsTheOthers) {
  const LaunchResult result = launch(3, [](RankContext& context) {
    if (context.rank == 1) throw Error("the cat sat on rank 1");
    wait_for_cancel(context);
  });
  EXPECT_EQ(result.failures, Failures{"the cat sat on rank 1"});
}

TEST_P(Launch, SaysThatMemoryRanOutInWords) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    if (context.rank == 1) throw std::bad_alloc();
    wait_for_cancel(context);
  });
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_TRUE(result.failures[0].starts_with("memory ran out: ")) << result.failures[0];
}

TEST_P(Launch, SaysOnceWhatAllRanksFound) {
  const LaunchResult result = launch(3, [](RankContext&) { throw Error("no such file"); });
  EXPECT_EQ(result.failures, Failures{"no such file"});
}

TEST_P(Launch, NamesTheCauseBeforeThoseWhoSufferedFromIt) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    if (context.rank == 0)
      throw CommError({.rank = 0,
                       .operation = "reduce",
                       .peer = 1,
                       .reason = "connection to rank 1 was closed"});
    // Its own reason becomes known only after the other has complained.
    Signal signal;
    context.clock.wait(
        signal, [] { return false; }, context.clock.after(seconds(30)), &context.control.cancel);
    throw Error("the disk of rank 1 is full");
  });
  ASSERT_EQ(result.failures.size(), 2u);
  EXPECT_EQ(result.failures[0], "the disk of rank 1 is full");
  EXPECT_NE(result.failures[1].find("connection to rank 1 was closed"), std::string::npos);
}

TEST_P(Launch, NamesFirstWhoLostItsPeerFirst) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    Signal signal;
    auto wait = [&](FunctionRef<bool()> ready, const Cancel* cancel) {
      context.clock.wait(signal, ready, context.clock.after(seconds(30)), cancel);
    };
    if (context.rank == 1) {
      context.failing();
      // Its end comes late: the other one has failed because of it meanwhile, and the launcher
      // knows.
      wait([] { return false; }, &context.control.cancel);
      throw CommError({.rank = 1,
                       .operation = "reduce",
                       .peer = 7,
                       .reason = "connection to rank 7 was closed"});
    }
    wait([&] { return context.control.ranks()[1].failed_at.load() != 0; }, nullptr);
    throw CommError({.rank = 0, .operation = "reduce", .peer = 1, .reason = "rank 1 has left"});
  });
  ASSERT_EQ(result.failures.size(), 2u) << testing::PrintToString(result.failures);
  EXPECT_NE(result.failures[0].find("connection to rank 7 was closed"), std::string::npos)
      << result.failures[0];
}

TEST_P(Launch, SaysNothingOfPeersThatWereLostToTheCancel) {
  const LaunchResult result = launch(3, [](RankContext& context) {
    if (context.rank == 0) throw Error("the cause");
    Signal signal;
    context.clock.wait(
        signal, [] { return false; }, context.clock.after(seconds(30)), &context.control.cancel);
    throw CommError(
        {.rank = context.rank, .operation = "reduce", .peer = 0, .reason = "rank 0 has left"});
  });
  EXPECT_EQ(result.failures, Failures{"the cause"});
}

TEST_P(Launch, StopsOnASignalWithALineAtOnceAndTheRanksReturnInOrder) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Failures said;
    LaunchOptions options{.ranks = 2, .threads = GetParam()};
    options.say = [&](const std::string& words) { said.push_back(words); };
    const LaunchResult result = launch_local(options, [&](RankContext& context) {
      context.begin();
      context.rendezvous.exchange({}, context.clock.after(seconds(30)));
      if (context.rank == 1) ::kill(GetParam() ? ::getpid() : ::getppid(), signal);
      wait_for_stop(context);
      if (context.rank == 0) context.control.heeded.store(1);
    });
    EXPECT_TRUE(result.ok());
    EXPECT_TRUE(result.heeded);
    EXPECT_EQ(result.signal, signal);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("finishing the step and saving"), std::string::npos) << said[0];
  }
}

TEST_P(Launch, EndsAtOnceWhenAskedBeforeTheFirstStep) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    if (context.rank == 1) ::kill(GetParam() ? ::getpid() : ::getppid(), SIGTERM);
    wait_for_cancel(context);
  });
  EXPECT_EQ(result.failures,
            Failures{"SIGTERM: stopped before the first step; there is nothing to save"});
  EXPECT_TRUE(result.at_once);
  EXPECT_EQ(result.signal, SIGTERM);
}

TEST_P(Launch, ManySignalsAtOnceAreOneRequestAndALaterCtrlCEndsAtOnce) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    context.begin();
    context.rendezvous.exchange({}, context.clock.after(seconds(30)));
    const pid_t launcher = GetParam() ? ::getpid() : ::getppid();
    if (context.rank == 1)
      for (int i = 0; i < 20; ++i)
        for (int signal : {SIGTERM, SIGINT, SIGHUP}) ::kill(launcher, signal);
    wait_for_stop(context);
    // As an impatient user does, until it is heard: what comes too early is no second thought.
    while (!context.control.cancel.cancelled()) {
      if (context.rank == 1) ::kill(launcher, SIGINT);
      context.clock.sleep(milliseconds(20), &context.control.cancel);
    }
    wait_for_cancel(context);
  });
  EXPECT_EQ(result.failures,
            Failures{"Ctrl-C: stopped at once; what came after the last checkpoint is lost"});
  EXPECT_TRUE(result.at_once);
}

TEST_P(Launch, LeavesTheProcessAsItWas) {
  auto descriptors = [] {
    std::set<std::string> open;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      open.insert(entry.path().filename());
    return open;
  };
  sigset_t before, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto open = descriptors();
  launch(3, [](RankContext& context) {
    if (context.rank == 2) throw Error("early");
    wait_for_cancel(context);
  });
  EXPECT_EQ(descriptors(), open);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int s : {SIGINT, SIGTERM, SIGCHLD})
    EXPECT_EQ(sigismember(&before, s), sigismember(&after, s));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_P(Launch, TellsThePidOfEveryRankOnce) {
  std::vector<int> ranks;
  std::set<int> pids;
  LaunchOptions options{.ranks = 3, .threads = GetParam()};
  options.started = [&](int rank, int pid) {
    ranks.push_back(rank);
    pids.insert(pid);
  };
  EXPECT_TRUE(launch_local(options, [](RankContext&) {}).ok());
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(pids.size(), GetParam() ? 1u : 3u);
  EXPECT_EQ(pids.contains(::getpid()), GetParam());
}

class LaunchProcesses : public testing::Test {
 protected:
  LaunchResult launch(int ranks, const std::function<void(RankContext&)>& body,
                      Duration timeout = seconds(30)) {
    LaunchOptions options{.ranks = ranks, .timeout = timeout};
    options.started = [&](int, int pid) { pids_.push_back(pid); };
    const Time begin = clock_.now();
    LaunchResult result = launch_local(options, body);
    taken_ = clock_.now() - begin;
    return result;
  }
  SystemClock clock_;
  std::vector<int> pids_;
  Duration taken_{};
};

TEST_F(LaunchProcesses, NameTheOneThatWasKilled) {
  const LaunchResult result = launch(3, [](RankContext& context) {
    if (context.rank == 2) ::raise(SIGKILL);
    wait_for_cancel(context);
  });
  EXPECT_EQ(result.failures,
            Failures{fmt::format("rank 2 (pid {}) was killed by signal 9 (Killed)", pids_[2])});
}

TEST_F(LaunchProcesses, NameTheOneThatEndedByItself) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    if (context.rank == 1) ::_exit(7);
    wait_for_cancel(context);
  });
  EXPECT_EQ(result.failures, Failures{fmt::format("rank 1 (pid {}) ended with code 7", pids_[1])});
}

TEST_F(LaunchProcesses, NameTheOneThatFellSilent) {
  const LaunchResult result = launch(
      3,
      [](RankContext& context) {
        if (context.rank == 1) ::raise(SIGSTOP);
        wait_for_cancel(context);
      },
      milliseconds(900));
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_TRUE(
      result.failures[0].starts_with(fmt::format("rank 1 (pid {}) was silent for ", pids_[1])))
      << result.failures[0];
}

TEST_F(LaunchProcesses, NameTheSilentOneAlsoWhenItsPeersGiveUpFirst) {
  const LaunchResult result = launch(
      3,
      [](RankContext& context) {
        if (context.rank == 1) ::raise(SIGSTOP);
        // Rank 2 waits for rank 0, which waits for rank 1: its message blames the wrong one.
        context.clock.sleep(milliseconds(1500), nullptr);
        throw CommError(
            {.rank = context.rank, .operation = "reduce", .peer = 0, .reason = "timed out"});
      },
      milliseconds(1800));
  ASSERT_FALSE(result.ok());
  EXPECT_TRUE(
      result.failures[0].starts_with(fmt::format("rank 1 (pid {}) was silent for ", pids_[1])))
      << testing::PrintToString(result.failures);
}

TEST_F(LaunchProcesses, KillWithinTheSecondWhoDoesNotHearTheCancel) {
  const LaunchResult result = launch(3, [](RankContext& context) {
    if (context.rank == 0) throw Error("rank 0 has had enough");
    while (true) ::pause();
  });
  EXPECT_EQ(result.failures, Failures{"rank 0 has had enough"});
  EXPECT_LT(taken_, seconds(1));  // the header's promise, counted from the start here
}

TEST_F(LaunchProcesses, SurviveSignalsThatAllOfThemGet) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    context.begin();
    for (int signal : {SIGTERM, SIGINT, SIGHUP}) ::kill(::getpid(), signal);
    if (context.rank == 0) ::kill(::getppid(), SIGTERM);
    wait_for_stop(context);
  });
  EXPECT_TRUE(result.ok()) << result.failures.front();
  EXPECT_EQ(result.signal, SIGTERM);
}

TEST_F(LaunchProcesses, StopTogetherWhenOneOfThemGetsASigterm) {
  Failures said;
  LaunchOptions options{.ranks = 3};
  options.say = [&](const std::string& words) { said.push_back(words); };
  const LaunchResult result = launch_local(options, [](RankContext& context) {
    context.begin();
    if (context.rank == 2) ::kill(::getpid(), SIGTERM);
    wait_for_stop(context);
  });
  EXPECT_TRUE(result.ok()) << result.failures.front();
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_EQ(said,
            Failures{"SIGTERM to rank 2: finishing the step and saving; Ctrl-C stops at once"});
}

TEST_F(LaunchProcesses, EndAtOnceBeforeTheFirstStepThoughOneIsDeaf) {
  const LaunchResult result = launch(2, [](RankContext& context) {
    if (context.rank == 1) ::kill(::getppid(), SIGINT);
    while (true) ::pause();  // a FIFO that nobody opens
  });
  EXPECT_TRUE(result.at_once);
  EXPECT_EQ(result.deaf, (std::vector<int>{0, 1}));
}

TEST_F(LaunchProcesses, LeaveIgnoredSignalsIgnored) {
  std::signal(SIGHUP, SIG_IGN);  // as under nohup
  const LaunchResult result = launch(2, [](RankContext& context) {
    context.begin();
    if (context.rank == 0) ::kill(::getppid(), SIGHUP);
    context.rendezvous.exchange({}, context.clock.after(seconds(30)));
    if (context.rank == 0) ::kill(::getppid(), SIGTERM);
    wait_for_stop(context);
  });
  std::signal(SIGHUP, SIG_DFL);
  EXPECT_TRUE(result.ok()) << result.failures.front();
  EXPECT_EQ(result.signal, SIGTERM);
}

/// A launch whose ranks another program is to fork, which hears nothing.
LaunchResult launch_by_a_deaf_host(int ranks, Duration silence = seconds(60)) {
  RankHost host("/bin/sleep", {"sleep", "1000"}, silence);
  return launch_local({.ranks = ranks, .host = &host}, {});
}

TEST(LaunchHosted, EndsAtOnceWhenAskedWhileItsHostHearsNothing) {
  // The launcher waits for the host's answer, or for room to say all that it has to say.
  for (int ranks : {2, 800}) {
    const HeldStops held;
    ::kill(::getpid(), SIGTERM);
    const LaunchResult result = launch_by_a_deaf_host(ranks);
    EXPECT_EQ(result.failures,
              Failures{"SIGTERM: stopped before the first step; there is nothing to save"});
    EXPECT_TRUE(result.at_once);
    EXPECT_EQ(result.signal, SIGTERM);
  }
}

TEST(LaunchHosted, FailsWhenItsHostTakesNothing) {
  EXPECT_EQ(launch_by_a_deaf_host(800).failures,
            Failures{"ranks are not started: the process at the other end takes nothing"});
}

TEST(LaunchHosted, FailsWhenItsHostDoesNothing) {
  EXPECT_EQ(launch_by_a_deaf_host(2, milliseconds(200)).failures,
            Failures{"ranks are not started: the process at the other end does nothing"});

  RankHost host("/bin/sleep", {"sleep", "1000"}, milliseconds(200));
  EXPECT_THROW(host.ready(), Error);
}

TEST(LaunchHosted, WaitsForAHostWhoseChildWorks) {
  const char* works = "i=0; while [ $i -lt 4000000 ]; do i=$((i+1)); done; exit 5";
  // Longer than a busy machine leaves a process without a turn, shorter than the child works.
  RankHost host("/bin/sh", {"sh", "-c", fmt::format("sh -c '{}'; exit 6", works)},
                milliseconds(1000));
  EXPECT_EQ(host.ready(), std::nullopt);
  EXPECT_EQ(host.code(), 6);
}

#if !__has_feature(thread_sanitizer)  // whose own thread the check must allow
TEST(LaunchHosted, AHostThatHasComputedForksNobodyAndSaysWhy) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const pid_t launcher = ::getpid(), host = ::fork();
  if (host == 0) {
    ::close(pair[0]);
    ::setenv("TUTTI_RANK_HOST", fmt::format("{}:{}", pair[1], launcher).c_str(), 1);
    std::optional<HostedProgram> program = HostedProgram::inherited();
    std::thread computing([] { ::pause(); });
    program->serve([](RankContext&, const std::string&) {});
  }
  ::close(pair[1]);
  std::string said;
  char part[256];
  for (ssize_t n; (n = ::read(pair[0], part, sizeof part)) > 0;) said.append(part, n);
  ::close(pair[0]);
  EXPECT_NE(said.find("since it has 2 threads"), std::string::npos) << said;
  int status = 0;
  EXPECT_EQ(::waitpid(host, &status, 0), host);
  EXPECT_TRUE(WIFEXITED(status));
}
#endif

/// One rank stands for all: the others' waiting, which would come on top, is left out.
TEST(LaunchThreads, AmongManyOneThatComputesShowsSignsOfWork) {
  SystemClock clock;
  SharedControl control(1);
  ThreadRendezvous rendezvous(1, clock, nullptr);
  const auto view = rendezvous.view(0);
  RankContext context{0, 1, clock, *control, *view, 0};
  sigset_t none;
  sigemptyset(&none);
  uint64_t signs = 0;
  run_rank(
      context,
      [&](RankContext& rank) {
        const Time begin = clock.now();
        do {
          signs = rank.signs()();
          // The first beat counts whatever the process did before.
        } while (signs < 3 && clock.now() - begin < seconds(20));
      },
      none, /*ranks_here=*/550);
  EXPECT_GE(signs, 3u);
}

TEST(LaunchThreads, ADeafOneEndsTheWholeProcessWhereThatIsAskedFor) {
  const auto deaf = [] {
    LaunchOptions options{.ranks = 2, .threads = true};
    options.abandon = [](const LaunchResult& result) { ::_exit(result.at_once ? 42 : 1); };
    launch_local(options, [](RankContext& context) {
      if (context.rank == 1) ::kill(::getpid(), SIGINT);
      while (true) ::pause();
    });
  };
  EXPECT_EXIT(deaf(), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace tutti
