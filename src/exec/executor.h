// Walks a program on the host: queue 0 on the caller's thread, and every other queue on a
// thread of its own. It never decides anything: a handler knows what an instruction means, and
// the plan gives the order.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "base/wait.h"
#include "exec/trace.h"
#include "plan/ir/program.h"

namespace tutti {

/// Called with the instruction and the step. It may throw; the run then ends with that exception.
using Handler = std::function<void(const Instruction&, uint64_t step)>;
using Handlers = std::array<Handler, kOps>;

class Executor {
 public:
  /// The program must outlive the executor. `thread_start` runs first on every queue thread
  /// (flush-to-zero, thread counts), `thread_end` last. An op of the program without a handler is a
  /// broken promise.
  Executor(const Program& program, Handlers handlers, Clock& clock, const Cancel* cancel,
           Trace* trace, const std::function<void()>& thread_start = {},
           const std::function<void()>& thread_end = {});
  ~Executor();  ///< stops and joins the queue threads
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs the program once; events are fresh for every step. If a handler throws, the other queues
  /// stop at their next instruction or wait, and the first exception (by time) is rethrown here,
  /// once all queues have stopped. If `cancel` is set, the queues stop likewise, with a CommError
  /// of the executor's own; a handler's exception is preferred over it. After a throw the executor
  /// can only be destroyed.
  /// A wait for an event has no deadline of its own: its signaller is a handler of this process,
  /// and the handlers' own waits have deadlines.
  void run(uint64_t step);
  /// By queue: how many of its instructions have ended in the last run.
  std::vector<size_t> ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
