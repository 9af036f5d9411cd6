// Threads and memory of the executor:
//
//   runs     counts run() calls. An event has been signalled in this run when its number is that
//            of the run, so nothing has to be reset between steps
//   stop     set by the first failure or by the destructor; every wait of the executor's own looks
//            at it
//
// run() counts itself, walks queue 0 itself, then waits for the other queues without regard to
// `cancel`: their handlers use what the caller owns, so the caller may not leave before them.
#include "exec/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/prompt.h"

namespace tutti {

namespace {

struct Event {
  Signal signal;
  std::atomic<uint64_t> run{0};
};

/// Thrown by a queue that is stopped by the failure of another one; it never leaves the executor.
struct Stopped {};

}  // namespace

struct Executor::Impl {
  Impl(const Program& program_, Handlers handlers_, Clock& clock_, const Cancel* cancel_,
       Trace* trace_)
      : program(program_),
        handlers(std::move(handlers_)),
        clock(clock_),
        cancel(cancel_),
        trace(trace_),
        events(program_.events),
        ended(program_.queues.size(), 0) {
    for (const Queue& queue : program.queues) {
      for (const Instruction& i : queue.instructions) {
        TUTTI_CHECK(handlers[static_cast<int>(i.op)], "no handler for {}", op_name(i.op));
      }
    }
  }

  const Program& program;
  const Handlers handlers;
  Clock& clock;
  const Cancel* const cancel;
  Trace* const trace;

  std::vector<Event> events;
  std::vector<size_t> ended;  // by queue, written by its thread
  Signal start, done;
  std::atomic<uint64_t> runs{0};
  uint64_t step = 0;            // of this run; written before `runs` is raised
  std::atomic<int> running{0};  // other queues still in this run
  std::atomic<int> alive{0};    // queue threads
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;

  std::mutex failure_mutex;
  std::exception_ptr failure;
  bool failure_is_cancel = false;  // `failure` only says that the run was cancelled

  void halt() {
    stop.store(true, std::memory_order_release);
    for (Event& event : events) clock.notify(event.signal);
    clock.notify(start);
  }

  // The first failure wins, but the news of a cancel gives way to a failure that says more.
  void fail(std::exception_ptr error, bool is_cancel) {
    {
      const std::lock_guard lock(failure_mutex);
      if (!failure || (failure_is_cancel && !is_cancel)) {
        failure = std::move(error);
        failure_is_cancel = is_cancel;
      }
    }
    halt();
  }

  /// Ends the threads that were started, which are fewer than the queues where the system gave no
  /// more.
  ~Impl() {
    halt();
    // A join is no wait of the clock's: it comes when the threads have nothing left to wait
    // for. If a test's clock has found a deadlock, it throws instead of waiting, and its
    // threads then end alone.
    try {
      wait_until_zero(alive);
    } catch (const Error&) {
    }
    for (std::thread& thread : threads) thread.join();
  }

  bool stopped() const { return stop.load(std::memory_order_acquire); }

  [[noreturn]] void throw_cancelled(const Queue& queue, const Instruction& next, Time since) const {
    throw CommError({program.rank, fmt::format("queue {} before {}", queue.name, describe(next)),
                     -1, step, clock.now() - since, cancel->reason()});
  }

  void await(uint32_t number, const Instruction& instruction, uint64_t now) {
    for (int wanted : instruction.waits) {
      Event& event = events[wanted];
      const auto ready = [&] {
        return stopped() || event.run.load(std::memory_order_acquire) == now;
      };
      // An event that has been signalled already costs no look at the clock.
      if (ready()) continue;
      // Another queue of this process signals it, or stops all when it throws: who waits for another
      // rank there has a deadline.
      const Time since = clock.now();
      if (clock.wait(event.signal, ready, Deadline::never(), cancel) == WaitResult::kCancelled) {
        throw_cancelled(program.queues[number], instruction, since);
      }
      if (trace) trace->add_wait(number, clock.now() - since);
    }
  }

  void walk(uint32_t number, uint64_t now) {
    // Between instructions the walk looks for reasons to stop. `in_handler` tells a failure of a
    // handler from a cancel that the walk itself has noticed.
    const Queue& queue = program.queues[number];
    bool in_handler = false;
    try {
      for (uint32_t index = 0; index < queue.instructions.size(); ++index) {
        const Instruction& instruction = queue.instructions[index];
        await(number, instruction, now);
        if (stopped()) throw Stopped{};
        if (cancel && cancel->cancelled()) throw_cancelled(queue, instruction, clock.now());

        const Time begin = trace ? clock.now() : Time{};
        in_handler = true;
        handlers[static_cast<int>(instruction.op)](instruction, step);
        in_handler = false;
        ended[number] = index + 1;
        if (trace) trace->add({begin, clock.now(), step, number, index, instruction.op});

        // Release: whoever waits for the event sees all that the handler wrote.
        if (instruction.signal >= 0) {
          Event& event = events[instruction.signal];
          event.run.store(now, std::memory_order_release);
          clock.notify(event.signal);
        }
      }
    } catch (const Stopped&) {
    } catch (...) {
      fail(std::current_exception(), !in_handler);
    }
  }

  void serve(uint32_t number) {
    for (uint64_t next = 1;; ++next) {
      const auto ready = [&] { return stopped() || runs.load(std::memory_order_acquire) >= next; };
      while (!ready()) clock.wait(start, ready, Deadline::never(), nullptr);
      // A run that has begun is walked even when stopped, so that run() counts every queue; that
      // walk ends at once.
      if (runs.load(std::memory_order_acquire) < next) return;
      walk(number, next);
      running.fetch_sub(1, std::memory_order_acq_rel);
      clock.notify(done);
    }
  }

  /// Queues end, since each of their waits does.
  void wait_until_zero(std::atomic<int>& count) {
    const auto ready = [&] { return count.load(std::memory_order_acquire) == 0; };
    while (!ready()) clock.wait(done, ready, Deadline::never(), nullptr);
  }
};

Executor::Executor(const Program& program, Handlers handlers, Clock& clock, const Cancel* cancel,
                   Trace* trace, const std::function<void()>& thread_start,
                   const std::function<void()>& thread_end)
    : impl_(std::make_unique<Impl>(program, std::move(handlers), clock, cancel, trace)) {
  // Serving ends with the executor, or by an exception of the clock: a test's clock throws when it
  // finds a deadlock.
  for (uint32_t q = 1; q < program.queues.size(); ++q) {
    impl_->threads.emplace_back([impl = impl_.get(), q, thread_start, thread_end] {
      wake_promptly();
      if (thread_start) thread_start();
      try {
        impl->serve(q);
      } catch (...) {
        impl->fail(std::current_exception(), true);
      }
      impl->alive.fetch_sub(1, std::memory_order_acq_rel);
      impl->clock.notify(impl->done);
      if (thread_end) thread_end();
    });
    impl_->alive.fetch_add(1);  // only now that it has started; nobody looks at it before the end
  }
}

Executor::~Executor() = default;

void Executor::run(uint64_t step) {
  TUTTI_CHECK(!impl_->stopped(), "an executor that has failed runs no further step");

  // All that a run needs is written before it is counted, which lets the other queues begin.
  impl_->step = step;
  std::fill(impl_->ended.begin(), impl_->ended.end(), 0);
  impl_->running.store(static_cast<int>(impl_->threads.size()), std::memory_order_release);
  const uint64_t now = impl_->runs.fetch_add(1, std::memory_order_acq_rel) + 1;
  impl_->clock.notify(impl_->start);

  // The caller walks queue 0 meanwhile.
  impl_->walk(0, now);
  impl_->wait_until_zero(impl_->running);

  // All queues have stopped: nothing uses the caller's memory any more.
  const std::lock_guard lock(impl_->failure_mutex);
  if (impl_->failure) std::rethrow_exception(impl_->failure);
}

std::vector<size_t> Executor::ended() const { return impl_->ended; }

}  // namespace tutti
