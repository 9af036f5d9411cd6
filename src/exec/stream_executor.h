// Puts a program on a device: queues are streams, and events are the device's. One host thread
// issues everything, in an order in which every event is recorded before it is waited for; the
// device then runs the queues side by side, as the plan says. Like the executor of the host it
// never decides anything.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "exec/device.h"
#include "exec/trace.h"
#include "plan/ir/program.h"

namespace tutti {

/// The place of an instruction in a program.
struct QueuePlace {
  int queue = 0, index = 0;
  bool operator==(const QueuePlace&) const = default;
};

/// All instructions, each after the earlier ones of its queue and after the signallers of what it
/// waits for. Those of queues other than 0 come as soon as that allows: peers may wait for them,
/// and would wait longest if they came after the compute. Throws Error when there is no such order
/// (plan/check/prove.h rejects such plans).
std::vector<QueuePlace> issue_order(const Program& program);

/// Puts the instruction's work on the stream.
using StreamHandler = std::function<void(const Instruction&, Stream)>;
using StreamHandlers = std::array<StreamHandler, kOps>;

class StreamExecutor {
 public:
  /// `program` and `device` must outlive it. streams[q] is the stream of queue q. An op of the
  /// program without a handler is a broken promise.
  StreamExecutor(const Program& program, StreamHandlers handlers, Device& device,
                 std::vector<Stream> streams);

  /// Puts the program on the streams once, and returns at once. Queues 1 and up begin after what is
  /// on `first` so far, and what is put on it next comes after all of them, so the step can be
  /// captured through that one stream. `first` takes the place of queue 0's stream.
  void issue(Stream first, bool timed);
  /// Traces the last timed issue, which must have run, with its times on the device;
  /// `begin` is when it began by the host's clock. Returns the seconds from then to the end
  /// of the last instruction.
  double collect(Trace& trace, uint64_t step, Time begin) const;
  /// The first instruction of the last timed issue that has not ended on the device, for messages;
  /// empty when all of them have.
  std::string unfinished() const;

 private:
  struct Timing {
    StreamEvent begin, end;
  };
  void make_timings();

  const Program& program_;
  StreamHandlers handlers_;
  Device& device_;
  std::vector<Stream> streams_;
  std::vector<QueuePlace> order_;
  std::vector<StreamEvent> events_;           // of the program
  StreamEvent begun_;                         // on the first stream, before everything
  std::vector<StreamEvent> ended_;            // by queue, after everything
  std::vector<std::vector<Timing>> timings_;  // by queue and index; made when first wanted
  StreamEvent origin_;
  bool timed_ = false;
};

}  // namespace tutti
