// A step is waited for by polling one event, since a wait of the device's own has no deadline and
// sees no cancel: a peer that is lost would be waited for without end.
#include "engine/device/device_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "config/timeout.h"

namespace tutti {

namespace {

constexpr int kWarmSteps = 2;         // steps that are issued singly before one is captured
constexpr int64_t kTraceEvery = 128;  // one step in so many is issued singly for the trace
// A step that takes long makes other ranks wait longer, so a step is given up after the time-out
// and so many times the longest one.
constexpr int kPatience = 10;
// The end of a step is looked for without sleeping while it is due: sleeping through it would leave
// the device idle. kEarly before that time the looking begins.
constexpr Duration kPoll = std::chrono::microseconds(50);
constexpr Duration kEarly = std::chrono::milliseconds(1);

}  // namespace

DeviceSteps::DeviceSteps(const EngineParts& parts, const RankDevice& rank, bool captures,
                         std::vector<DeviceGroup*> groups)
    : p_(parts),
      device_(*rank.device),
      compute_(rank.compute),
      may_capture_(captures),
      groups_(std::move(groups)),
      captures_(device_.make_stream()),
      copies_(device_.make_stream()),
      done_(device_.make_event(false)),
      copied_out_(device_.make_event(false)) {
  // Recorded once, so that the first wait for it finds something that has run.
  device_.record(copied_out_, copies_);
}

DeviceSteps::~DeviceSteps() {
  if (captured_.handle != nullptr) device_.destroy(captured_);
}

void DeviceSteps::leave_capture() {
  try {
    device_.destroy(device_.end_capture(captures_));
  } catch (const Error&) {  // says again what failed; the stream is out of its capture
  }
}

void DeviceSteps::capture(StreamExecutor& executor, FunctionRef<void(Stream)> first) {
  // Nothing runs here: what is put on the stream is kept. A stream is taken out of its capture
  // whatever happens, or it would refuse all later work.
  device_.make_current(captures_);
  device_.begin_capture(captures_);
  try {
    first(captures_);
    executor.issue(captures_, false);
  } catch (const CommError&) {
    leave_capture();
    throw;
  } catch (const std::exception& e) {
    const std::string reason = e.what();
    leave_capture();
    throw Error(fmt::format(
        "a step could not be captured ({}); layout.graph = false runs it without", reason));
  }

  // From here on the step is launched on compute, where ATen's other work goes, too.
  captured_ = device_.end_capture(captures_);
  device_.make_current(compute_);
}

void DeviceSteps::launch(StreamExecutor& executor, FunctionRef<void(Stream)> first) {
  begun_ = p_.context.clock.awake();

  // Steps that are issued singly are also those whose times are taken. A step is captured when it
  // is first to be launched.
  timed_ = runs_ < kWarmSteps || runs_ % kTraceEvery == 0 || !may_capture_;
  if (!timed_ && captured_.handle == nullptr) capture(executor, first);

  // Capturing takes host time that is no part of the step.
  issued_ = p_.context.clock.now();
  if (timed_) {
    first(compute_);
    executor.issue(compute_, true);
  } else {
    device_.launch(captured_, compute_);
  }
}

void DeviceSteps::mark() { device_.record(done_, compute_); }

void DeviceSteps::finish(StreamExecutor& executor, uint64_t step) {
  const Time waiting = p_.context.clock.awake();
  await(&executor, "step", step, deadline());
  typical_ = p_.context.clock.awake() - waiting;
  // In the first step libraries load and choose, so it stands for no other.
  if (timed_ && runs_ > 0)
    traced_ += executor.collect(p_.gauges.trace, static_cast<uint64_t>(runs_), issued_);

  ++runs_;
  if (runs_ > kWarmSteps) longest_ = std::max(longest_, p_.context.clock.awake() - begun_);
}

void DeviceSteps::settle(const std::string& operation, uint64_t step) {
  settle(operation, step, deadline());
}

void DeviceSteps::settle(const std::string& operation, uint64_t step, Patience patience) {
  mark();
  await(nullptr, operation, step, std::move(patience));
}

Deadline DeviceSteps::deadline() const {
  return p_.context.clock.after(timeout_of(p_.training.job) + kPatience * longest_);
}

void DeviceSteps::await(const StreamExecutor* executor, const std::string& operation, uint64_t step,
                        Patience patience) {
  Clock& clock = p_.context.clock;
  const Time since = clock.now();
  const Cancel& cancel = p_.context.control.cancel;

  // From a little before the step is due until a quarter after it, this thread polls without
  // sleeping, and looks for faults only at every 256th look.
  const Time due = since + typical_ - kEarly, overdue = since + typical_ + typical_ / 4 + kEarly;

  for (int64_t looks = 0; !device_.done(done_); ++looks) {
    const Time now = clock.now();
    const bool soon = now >= due && now <= overdue;
    if (soon && looks % 256 != 0) continue;

    // In this order: the cause that the run knows of, then what a group has found, then the
    // deadline.
    if (cancel.cancelled()) give_up(executor, operation, step, since, cancel.reason());
    for (DeviceGroup* group : groups_)
      if (const std::string fault = group->fault(); !fault.empty())
        give_up(executor, operation, step, since, fault);
    if (clock.passed(patience.deadline()) && !patience.extend())
      give_up(executor, operation, step, since, "timed out");
    if (!soon) clock.sleep(kPoll, nullptr);
  }
}

void DeviceSteps::let_go() {
  // A communicator does not end before the graphs that use it, so these go first.
  if (captured_.handle != nullptr) device_.destroy(std::exchange(captured_, CapturedStep{}));
  for (DeviceGroup* group : groups_) group->abort();
  device_.abandon();
}

void DeviceSteps::give_up(const StreamExecutor* executor, const std::string& operation,
                          uint64_t step, Time since, const std::string& reason) {
  // The place is asked for before letting go: after that nothing is known of the device.
  const Duration waited = p_.context.clock.now() - since;
  std::string where = operation;
  if (executor != nullptr)
    if (const std::string at = executor->unfinished(); !at.empty()) where += " at " + at;
  let_go();
  throw CommError(
      {p_.context.rank, where + " on " + device_.info().name, -1, step, waited, reason});
}

std::function<void()> DeviceSteps::copy_out(uint64_t step, FunctionRef<void(Stream)> copy) {
  // After the mark of the last step, on the device; the next step's Updates wait for the
  // copy in their turn.
  device_.wait(copies_, done_);
  copy(copies_);
  device_.record(copied_out_, copies_);
  // Waited for on another thread than that of the steps, so it touches nothing of theirs.
  return [&device = device_, event = copied_out_, &context = p_.context, step,
          patience = timeout_of(p_.training.job) + kPatience * longest_] {
    const Time since = context.clock.awake();
    while (!device.done(event)) {
      const Cancel& cancel = context.control.cancel;
      const Duration waited = context.clock.awake() - since;
      if (cancel.cancelled() || waited > patience)
        throw CommError({context.rank, "copy of the state out of " + device.info().name, -1, step,
                         waited, cancel.cancelled() ? cancel.reason() : "timed out"});
      context.clock.sleep(kPoll, nullptr);
    }
  };
}

void DeviceSteps::await_copies(Stream stream) {
  device_.wait(stream, copied_out_, /*outside=*/true);
}

}  // namespace tutti
