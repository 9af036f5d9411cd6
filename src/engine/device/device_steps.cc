#include "engine/device/device_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tutti {

namespace {

constexpr int kWarmSteps = 2;
constexpr int64_t kTraceEvery = 128;
// Steps that take long make the others wait longer: a step is given up after the time-out and so
// many of the longest.
constexpr int kPatience = 10;
// A step's end is looked for without sleeping while it is due: sleeping through it would leave the
// device idle.
constexpr Duration kPoll = std::chrono::microseconds(50);
constexpr Duration kEarly = std::chrono::milliseconds(1);

}  // namespace

DeviceSteps::DeviceSteps(Parts parts)
    : p_(std::move(parts)),
      captures_(p_.device.make_stream()),
      copies_(p_.device.make_stream()),
      done_(p_.device.make_event(false)),
      copied_out_(p_.device.make_event(false)) {
  p_.device.record(copied_out_, copies_);
}

DeviceSteps::~DeviceSteps() {
  if (captured_.handle != nullptr) p_.device.destroy(captured_);
}

void DeviceSteps::leave_capture() {
  try {
    p_.device.destroy(p_.device.end_capture(captures_));
  } catch (const Error&) {  // says again what failed; the stream is out of its capture
  }
}

void DeviceSteps::capture(StreamExecutor& executor, FunctionRef<void(Stream)> first) {
  p_.device.make_current(captures_);
  p_.device.begin_capture(captures_);
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
  captured_ = p_.device.end_capture(captures_);
  p_.device.make_current(p_.compute);
}

void DeviceSteps::launch(StreamExecutor& executor, FunctionRef<void(Stream)> first) {
  begun_ = p_.context.clock.awake();
  timed_ = rounds_ < kWarmSteps || rounds_ % kTraceEvery == 0 || !p_.captures;
  if (!timed_ && captured_.handle == nullptr) capture(executor, first);
  issued_ = p_.context.clock.now();
  if (timed_) {
    first(p_.compute);
    executor.issue(p_.compute, true);
  } else {
    p_.device.launch(captured_, p_.compute);
  }
}

void DeviceSteps::mark() { p_.device.record(done_, p_.compute); }

void DeviceSteps::finish(StreamExecutor& executor, uint64_t step) {
  const Time waiting = p_.context.clock.awake();
  await(&executor, "step", step);
  typical_ = p_.context.clock.awake() - waiting;
  // In the first step libraries load and choose: it stands for no other.
  if (timed_ && rounds_ > 0)
    traced_ += executor.collect(p_.trace, static_cast<uint64_t>(rounds_), issued_);
  ++rounds_;
  if (rounds_ > kWarmSteps) longest_ = std::max(longest_, p_.context.clock.awake() - begun_);
}

void DeviceSteps::settle(const std::string& operation, uint64_t step) {
  mark();
  await(nullptr, operation, step);
}

void DeviceSteps::await(const StreamExecutor* executor, const std::string& operation,
                        uint64_t step) {
  Clock& clock = p_.context.clock;
  const Time since = clock.now();
  const Deadline deadline = clock.after(p_.timeout + kPatience * longest_);
  const Cancel& cancel = p_.context.control.cancel;
  const Time due = since + typical_ - kEarly, overdue = since + typical_ + typical_ / 4 + kEarly;
  for (int64_t looks = 0; !p_.device.done(done_); ++looks) {
    const Time now = clock.now();
    const bool soon = now >= due && now <= overdue;
    if (soon && looks % 256 != 0) continue;
    if (cancel.cancelled()) give_up(executor, operation, step, since, cancel.reason());
    for (DeviceGroup* group : p_.groups)
      if (const std::string fault = group->fault(); !fault.empty())
        give_up(executor, operation, step, since, fault);
    if (clock.passed(deadline)) give_up(executor, operation, step, since, "timed out");
    if (!soon) clock.sleep(kPoll, nullptr);
  }
}

void DeviceSteps::let_go() {
  // A communicator does not end before the graphs that use it.
  if (captured_.handle != nullptr) p_.device.destroy(std::exchange(captured_, CapturedStep{}));
  for (DeviceGroup* group : p_.groups) group->abort();
  p_.device.abandon();
}

void DeviceSteps::give_up(const StreamExecutor* executor, const std::string& operation,
                          uint64_t step, Time since, const std::string& reason) {
  const Duration waited = p_.context.clock.now() - since;
  std::string where = operation;
  if (executor != nullptr)
    if (const std::string at = executor->unfinished(); !at.empty()) where += " at " + at;
  let_go();
  throw CommError(
      {p_.context.rank, where + " on " + p_.device.info().name, -1, step, waited, reason});
}

std::function<void()> DeviceSteps::copy_out(uint64_t step, FunctionRef<void(Stream)> copy) {
  p_.device.wait(copies_, done_);
  copy(copies_);
  p_.device.record(copied_out_, copies_);
  // Waited for on another thread than the steps': it touches nothing of theirs.
  return [&device = p_.device, event = copied_out_, &context = p_.context, step,
          patience = p_.timeout + kPatience * longest_] {
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
  p_.device.wait(stream, copied_out_, /*outside=*/true);
}

}  // namespace tutti
