// What ran when: one record per executed instruction, kept in a ring of fixed size, and written as
// Chrome/Perfetto JSON and as SVG. Also how long every kind of work took over the whole run.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/wait.h"
#include "plan/ir/program.h"

namespace tutti {

struct TraceRecord {
  Time begin, end;
  uint64_t step = 0;  ///< counted from 0, from the start of this trace
  uint32_t queue = 0;
  uint32_t index = 0;  ///< of the instruction in its queue
  Op op = Op::kLoad;   ///< of the instruction
};

/// Thread-safe; one per rank. Keeps the last `capacity` records, and totals over all records.
class Trace {
 public:
  explicit Trace(size_t capacity = 1 << 16);
  void add(const TraceRecord& record);
  /// Notes that a queue waited for an event before an instruction.
  void add_wait(uint32_t queue, Duration waited);
  std::vector<TraceRecord> records() const;  ///< oldest first
  /// Seconds of all instructions of this kind so far, kept or not, summed over the queues, which
  /// run at the same time.
  double seconds(Op op) const;
  /// Seconds that a queue waited for the others so far.
  double waited(uint32_t queue) const;

 private:
  mutable std::mutex mutex_;
  std::vector<TraceRecord> ring_;
  // the place of the oldest record once the ring is full
  size_t next_ = 0;
  size_t capacity_;
  std::array<Duration, kOps> totals_{};
  std::vector<Duration> waits_;  // by queue
};

/// One record with names, as stored in RUN/trace/rank-R.jsonl. Times are in microseconds from the
/// start of the run.
struct TraceEvent {
  int rank = 0;
  std::string queue, name, detail;
  uint64_t step = 0;  ///< of the run, from 1, as in metrics.jsonl
  double begin_us = 0, end_us = 0;
};
/// `before` is the number of steps that were committed when the trace began.
std::vector<TraceEvent> trace_events(const Trace& trace, const Program& program, Time origin,
                                     uint64_t before);
std::string describe(const Instruction& instruction);  ///< "Forward block 3.1 lane 2 micro 0"
/// One line of rank-R.jsonl, without its end. Parsing throws Error on anything else.
std::string trace_line(const TraceEvent& event);
TraceEvent parse_trace_line(const std::string& line);

/// Chrome trace format (an object with traceEvents; pid = rank, tid = queue).
std::string chrome_trace(const std::vector<TraceEvent>& events);
/// A timeline of one step: a row per (rank, queue), a colour per op, a legend and a time
/// axis. Times count from the first instruction of the step. A step without events gives a
/// picture that says so.
std::string svg_trace(const std::vector<TraceEvent>& events, uint64_t step);

}  // namespace tutti
