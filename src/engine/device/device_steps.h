// The rhythm of steps on a device: they are issued instruction by instruction, or captured
// once and launched again, and waited for with a deadline. Also the copies of the state that
// leave alongside them.
//
// The first steps are issued singly: libraries choose their kernels, and the pool takes its size.
// Then the step is captured, on a stream of its own, so that what ATen holds for it is apart from
// what later steps allocate. Every kTraceEvery-th step is still issued one by one, with its times
// taken; it has the same bits, as verify shows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/patience.h"
#include "base/wait.h"
#include "device/group.h"
#include "engine/device/rank_device.h"
#include "engine/parts.h"
#include "exec/stream_executor.h"

namespace tutti {

class DeviceSteps {
 public:
  /// `captures`: whether steps may be captured; `groups`: all that steps may wait in. All must
  /// outlive it.
  DeviceSteps(const EngineParts& parts, const RankDevice& rank, bool captures,
              std::vector<DeviceGroup*> groups);
  ~DeviceSteps();
  DeviceSteps(const DeviceSteps&) = delete;
  DeviceSteps& operator=(const DeviceSteps&) = delete;

  /// Puts a step on the streams, after what is on compute: first what `first` puts on the stream
  /// that it is given, then the program.
  void launch(StreamExecutor& executor, FunctionRef<void(Stream)> first);
  /// What is on compute by this call is what finish() waits for.
  void mark();
  /// Waits for the step. Throws CommError when the device makes no progress, or a peer is lost.
  void finish(StreamExecutor& executor, uint64_t step);
  /// Waits until all that is on compute has run: as long as a step may take, or with a patience of
  /// the caller's where other ranks may have work of their own before they come to it.
  void settle(const std::string& operation, uint64_t step);
  void settle(const std::string& operation, uint64_t step, Patience patience);
  /// Seconds of the steps that were traced.
  double traced_seconds() const { return traced_; }

  /// Puts `copy` on a stream of its own, after the last step. The returned function waits
  /// for it, on any thread.
  std::function<void()> copy_out(uint64_t step, FunctionRef<void(Stream)> copy);
  /// Makes the stream wait until what was copied out has left.
  void await_copies(Stream stream);

  /// Ends what is on the device without waiting for it. After that only destruction is left.
  void let_go();

 private:
  void capture(StreamExecutor& executor, FunctionRef<void(Stream)> first);
  void leave_capture();
  void await(const StreamExecutor* executor, const std::string& operation, uint64_t step,
             Patience patience);
  /// Many times as long as the longest step took.
  Deadline deadline() const;
  [[noreturn]] void give_up(const StreamExecutor* executor, const std::string& operation,
                            uint64_t step, Time since, const std::string& reason);

  const EngineParts& p_;
  Device& device_;
  const Stream compute_;
  const bool may_capture_;
  const std::vector<DeviceGroup*> groups_;
  Stream captures_, copies_;
  StreamEvent done_, copied_out_;
  CapturedStep captured_;
  int64_t runs_ = 0;
  bool timed_ = false;
  Time begun_{}, issued_{};
  double traced_ = 0;  // seconds
  // the longest step, and how long the last one was waited for
  Duration longest_{0}, typical_{0};
};

}  // namespace tutti
