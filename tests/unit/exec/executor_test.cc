#include "exec/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "support/test_scheduler.h"

namespace tutti {

namespace {

Instruction make(Op op, int number, std::vector<int> waits = {}, int signal = -1) {
  Instruction i;
  i.op = op, i.id = static_cast<uint32_t>(number), i.block = number;
  i.waits = std::move(waits);
  i.signal = signal;
  return i;
}

/// compute: 1, then 2 after event 0; data: 10 after event 1, which signals event 0. Instruction 1
/// signals event 1.
Program ping_pong() {
  Program program;
  program.rank = 3;
  program.events = 2;
  program.queues = {{"compute", {make(Op::kForward, 1, {}, 1), make(Op::kUpdate, 2, {0})}},
                    {"data", {make(Op::kReduce, 10, {1}, 0)}}};
  return program;
}

/// Every op goes to one function.
Handlers all(const Handler& handler) {
  Handlers handlers;
  handlers.fill(handler);
  return handlers;
}

struct Log {
  std::mutex mutex;
  std::vector<std::pair<uint64_t, uint32_t>> ran;  // (step, id)
  Handler handler() {
    return [this](const Instruction& i, uint64_t step) {
      const std::lock_guard lock(mutex);
      ran.emplace_back(step, i.id);
    };
  }
};

std::string message_of(Executor& executor, uint64_t step) {
  try {
    executor.run(step);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST(Executor, EventsOrderQueuesInEveryStep) {
  const Program program = ping_pong();
  SystemClock clock;
  Log log;
  Executor executor(program, all(log.handler()), clock, nullptr, nullptr);
  std::vector<std::pair<uint64_t, uint32_t>> expected;
  for (uint64_t step = 5; step < 205; ++step) {
    executor.run(step);
    for (uint32_t id : {1u, 10u, 2u}) expected.emplace_back(step, id);
  }
  EXPECT_EQ(log.ran, expected);
}

TEST(Executor, ComputeRunsOnTheCallersThreadAndEveryOtherQueueOnItsOwn) {
  Program program = ping_pong();
  program.queues.push_back({"more", {make(Op::kVote, 20)}});
  SystemClock clock;
  std::mutex mutex;
  std::map<uint32_t, std::set<std::thread::id>> threads;
  Executor executor(program, all([&](const Instruction& i, uint64_t) {
                      const std::lock_guard lock(mutex);
                      threads[i.id].insert(std::this_thread::get_id());
                    }),
                    clock, nullptr, nullptr);
  for (int step = 0; step < 3; ++step) executor.run(step);
  EXPECT_EQ(threads[1], std::set{std::this_thread::get_id()});
  EXPECT_EQ(threads[2], threads[1]);
  EXPECT_EQ(threads[10].size(), 1u);
  EXPECT_EQ(threads[20].size(), 1u);
  std::set<std::thread::id> different = threads[1];
  different.merge(threads[10]);
  different.merge(threads[20]);
  EXPECT_EQ(different.size(), 3u);
}

TEST(Executor, HooksEncloseEveryQueueThread) {
  const Program program = ping_pong();
  SystemClock clock;
  std::mutex mutex;
  std::vector<std::string> calls;
  const auto note = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    calls.push_back(text);
  };
  {
    Executor executor(
        program, all([&](const Instruction& i, uint64_t) {
          if (i.id == 10) note("run");
        }),
        clock, nullptr, nullptr, [&] { note("start"); }, [&] { note("end"); });
    executor.run(0);
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"start", "run", "end"}));
}

TEST(Executor, AnExceptionOnAQueueThreadReachesTheCaller) {
  const Program program = ping_pong();
  SystemClock clock;
  Log log;
  Handlers handlers = all(log.handler());
  handlers[static_cast<int>(Op::kReduce)] = [](const Instruction&, uint64_t) {
    throw Error("no more");
  };
  Executor executor(program, handlers, clock, nullptr, nullptr);
  EXPECT_EQ(message_of(executor, 0), "no more");
  // 2 waited for the failed reduce
  EXPECT_EQ(log.ran, (std::vector<std::pair<uint64_t, uint32_t>>{{0, 1}}));
}

TEST(Executor, AnExceptionOnComputeStopsAQueueThatWaits) {
  const Program program = ping_pong();
  SystemClock clock;
  Log log;
  Handlers handlers = all(log.handler());
  handlers[static_cast<int>(Op::kForward)] = [](const Instruction&, uint64_t) {
    throw Error("broken block");
  };
  Executor executor(program, handlers, clock, nullptr, nullptr);
  EXPECT_EQ(message_of(executor, 0), "broken block");
  EXPECT_TRUE(log.ran.empty());
}

TEST(Executor, TheOtherQueueStopsAtItsNextInstruction) {
  Program program;
  program.events = 1;
  program.queues = {
      {"compute", {make(Op::kForward, 1, {}, 0), make(Op::kForward, 2), make(Op::kForward, 3)}},
      {"data", {make(Op::kReduce, 10, {0})}}};
  SystemClock clock;
  Signal signal;
  std::atomic<bool> ended{false};
  std::vector<int> forwards;
  Handlers handlers;
  handlers[static_cast<int>(Op::kForward)] = [&](const Instruction& i, uint64_t) {
    forwards.push_back(i.block);
    if (i.block != 2) return;
    // Still running when the failed queue's thread has come to its end.
    EXPECT_EQ(
        clock.wait(
            signal, [&] { return ended.load(); }, clock.after(std::chrono::seconds(20)), nullptr),
        WaitResult::kReady);
  };
  handlers[static_cast<int>(Op::kReduce)] = [](const Instruction&, uint64_t) {
    throw Error("lost");
  };
  const auto at_end = [&] {
    ended = true;
    clock.notify(signal);
  };
  Executor executor(program, handlers, clock, nullptr, nullptr, {}, at_end);
  EXPECT_EQ(message_of(executor, 0), "lost");
  EXPECT_LE(forwards.size(), 2u);
  EXPECT_EQ(std::count(forwards.begin(), forwards.end(), 3), 0);
}

TEST(Executor, ACancelEndsAWaitForAnEventWithTheReason) {
  // The reduce waits for what only an endless forward would signal: it runs until it sees the
  // cancel, and then returns.
  Program program = ping_pong();
  SystemClock clock;
  Cancel cancel;
  Signal never;
  Handlers handlers = all([](const Instruction&, uint64_t) {});
  handlers[static_cast<int>(Op::kForward)] = [&](const Instruction&, uint64_t) {
    cancel.cancel("rank 1 was killed");
    clock.wait(
        never, [] { return false; }, Deadline::never(), &cancel);
  };
  Executor executor(program, handlers, clock, &cancel, nullptr);
  try {
    executor.run(8);
    FAIL();
  } catch (const CommError& e) {
    EXPECT_EQ(e.failure().rank, 3);
    EXPECT_EQ(e.failure().sequence, 8u);
    EXPECT_EQ(e.failure().reason, "rank 1 was killed");
    EXPECT_NE(e.failure().operation.find("queue "), std::string::npos);
  }
}

TEST(Executor, AHandlersErrorIsPreferredOverACancelledWait) {
  Program program = ping_pong();
  program.queues.push_back({"more", {make(Op::kVote, 20, {0})}});
  SystemClock clock;
  Cancel cancel;
  Signal signal;
  std::atomic<bool> ended{false};
  Handlers handlers = all([](const Instruction&, uint64_t) {});
  handlers[static_cast<int>(Op::kReduce)] = [&](const Instruction& i, uint64_t step) {
    // The third queue, which waits for this one, is cancelled and ends; the error that says who is
    // to blame comes later.
    cancel.cancel("rank 1 is gone");
    EXPECT_EQ(
        clock.wait(
            signal, [&] { return ended.load(); }, clock.after(std::chrono::seconds(20)), nullptr),
        WaitResult::kReady);
    throw CommError({3, "reduce parcel 0", 1, step, {}, "connection closed"});
  };
  const auto at_end = [&] {
    ended = true;
    clock.notify(signal);
  };
  Executor executor(program, handlers, clock, &cancel, nullptr, {}, at_end);
  try {
    executor.run(0);
    FAIL();
  } catch (const CommError& e) {
    EXPECT_EQ(e.failure().peer, 1);
    EXPECT_EQ(e.failure().reason, "connection closed");
  }
}

TEST(Executor, CanBeDestroyedWithoutARunAndAfterAFailure) {
  const Program program = ping_pong();
  SystemClock clock;
  {
    Executor executor(program, all([](const Instruction&, uint64_t) {}), clock, nullptr, nullptr);
  }
  Handlers failing = all([](const Instruction&, uint64_t) { throw Error("at once"); });
  Executor executor(program, failing, clock, nullptr, nullptr);
  EXPECT_EQ(message_of(executor, 0), "at once");
}

TEST(Executor, RecordsWhatRanWhen) {
  const Program program = ping_pong();
  SystemClock clock;
  Trace trace;
  Executor executor(program, all([](const Instruction&, uint64_t) {}), clock, nullptr, &trace);
  executor.run(0);
  executor.run(1);
  const auto records = trace.records();
  ASSERT_EQ(records.size(), 6u);
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, TraceRecord> by;
  for (const TraceRecord& r : records) {
    EXPECT_LE(r.begin, r.end);
    by[{r.step, r.queue, r.index}] = r;
  }
  ASSERT_EQ(by.size(), 6u);
  for (uint64_t step : {0, 1}) {
    EXPECT_LE((by[{step, 0, 0}].end), (by[{step, 1, 0}].begin));
    EXPECT_LE((by[{step, 1, 0}].end), (by[{step, 0, 1}].begin));
  }
}

TEST(Executor, EndsTheThreadsThatItHasWhereTheSystemGivesNoMore) {
  /// Called when a thread starts; the copies that threads are made with run out.
  struct Start {
    int& left;
    std::atomic<int>& started;
    Start(int& copies, std::atomic<int>& starts) : left(copies), started(starts) {}
    Start(const Start& other) : left(other.left), started(other.started) {
      if (left-- == 0)
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    void operator()() const { ++started; }
  };
  Program program = ping_pong();
  for (const char* name : {"down", "up"}) program.queues.push_back({name, {}});
  SystemClock clock;
  Log log;
  int left = 100;
  std::atomic<int> started{0}, ended{0};
  const std::function<void()> start{Start(left, started)};
  left = 3;
  EXPECT_THROW(
      Executor(program, all(log.handler()), clock, nullptr, nullptr, start, [&] { ++ended; }),
      std::system_error);
  EXPECT_GE(started, 1);
  EXPECT_EQ(ended, started);
}

TEST(Executor, AddsUpHowLongEveryOpTookAndAQueueWaited) {
  using namespace std::chrono_literals;
  const Program program = ping_pong();
  Trace trace(1);
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  test::TestScheduler clock(seed);
  const std::map<Op, Duration> takes{{Op::kForward, 2ms}, {Op::kReduce, 5ms}, {Op::kUpdate, 1ms}};
  clock.spawn("rank", [&] {
    const auto begin = clock.guest("data");
    Executor executor(
        program, all([&](const Instruction& i, uint64_t) { clock.sleep(takes.at(i.op), nullptr); }),
        clock, nullptr, &trace, begin);
    for (uint64_t step = 0; step < 3; ++step) executor.run(step);
  });
  clock.run();
  EXPECT_DOUBLE_EQ(trace.seconds(Op::kForward), 6e-3);
  EXPECT_DOUBLE_EQ(trace.seconds(Op::kReduce), 15e-3);
  EXPECT_DOUBLE_EQ(trace.seconds(Op::kUpdate), 3e-3);
  EXPECT_EQ(trace.seconds(Op::kVote), 0);
  EXPECT_DOUBLE_EQ(trace.waited(0), 15e-3);
  EXPECT_DOUBLE_EQ(trace.waited(1), 6e-3);
}

}  // namespace tutti
