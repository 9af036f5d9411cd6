// The device's events are recorded once per step and never reset. Waiting for an event before it is
// recorded would mean its record of the step before, or nothing at all; hence the order in which
// everything is issued.
#include "exec/stream_executor.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

std::vector<QueuePlace> issue_order(const Program& program) {
  std::vector<QueuePlace> order;
  std::vector<bool> recorded(program.events);
  std::vector<size_t> next(program.queues.size());

  // An instruction can be issued when all events that it waits for have been recorded.
  const auto ready = [&](const Instruction& i) {
    return std::all_of(i.waits.begin(), i.waits.end(), [&](int event) { return recorded[event]; });
  };
  const auto take = [&](size_t q) {
    const auto& instructions = program.queues[q].instructions;
    if (next[q] == instructions.size() || !ready(instructions[next[q]])) return false;
    const int index = static_cast<int>(next[q]++);
    if (instructions[index].signal >= 0) recorded[instructions[index].signal] = true;
    order.push_back({static_cast<int>(q), index});
    return true;
  };

  // All that can be taken from queues 1 and up comes first, then one instruction of queue 0. A
  // turn in which nothing could be taken is a circle of waits.
  size_t all = 0;
  for (const Queue& queue : program.queues) all += queue.instructions.size();
  while (order.size() < all) {
    const size_t before = order.size();
    for (size_t taken = SIZE_MAX; taken != order.size();) {
      taken = order.size();
      for (size_t q = 1; q < program.queues.size(); ++q)
        while (take(q)) {
        }
    }
    take(0);
    if (order.size() == before) throw Error("the program waits for an event that nothing signals");
  }
  return order;
}

StreamExecutor::StreamExecutor(const Program& program, StreamHandlers handlers, Device& device,
                               std::vector<Stream> streams)
    : program_(program),
      handlers_(std::move(handlers)),
      device_(device),
      streams_(std::move(streams)),
      order_(issue_order(program)) {
  TUTTI_CHECK(streams_.size() == program.queues.size(), "{} streams for {} queues", streams_.size(),
              program.queues.size());

  for (const QueuePlace& place : order_) {
    const Op op = program.queues[place.queue].instructions[place.index].op;
    TUTTI_CHECK(handlers_[static_cast<int>(op)], "no handler for {}", op_name(op));
  }

  // Events are made once and recorded anew in every step.
  for (int e = 0; e < program.events; ++e) events_.push_back(device.make_event(false));
  begun_ = device.make_event(false);
  for (size_t q = 0; q < program.queues.size(); ++q) ended_.push_back(device.make_event(false));
}

void StreamExecutor::make_timings() {
  // Events with times are made only when a step is to be timed.
  if (!timings_.empty()) return;
  origin_ = device_.make_event(true);
  for (const Queue& queue : program_.queues) {
    timings_.emplace_back();
    for (size_t i = 0; i < queue.instructions.size(); ++i)
      timings_.back().push_back({device_.make_event(true), device_.make_event(true)});
  }
}

void StreamExecutor::issue(Stream first, bool timed) {
  if (timed) {
    make_timings();
    device_.record(origin_, first);
  }
  timed_ = timed;

  // All streams fork from the first one, and join it at the end: that makes them one piece, which
  // can be captured and waited for.
  const auto stream_of = [&](size_t q) { return q == 0 ? first : streams_[q]; };
  device_.record(begun_, first);
  for (size_t q = 1; q < streams_.size(); ++q) device_.wait(streams_[q], begun_);

  // The issue order promises that each event is recorded above before it is waited for here.
  for (const QueuePlace& place : order_) {
    const Instruction& i = program_.queues[place.queue].instructions[place.index];
    const Stream stream = stream_of(static_cast<size_t>(place.queue));
    for (int event : i.waits) device_.wait(stream, events_[event]);
    if (timed) device_.record(timings_[place.queue][place.index].begin, stream);
    handlers_[static_cast<int>(i.op)](i, stream);
    if (timed) device_.record(timings_[place.queue][place.index].end, stream);
    if (i.signal >= 0) device_.record(events_[i.signal], stream);
  }

  // The join.
  for (size_t q = 1; q < streams_.size(); ++q) {
    device_.record(ended_[q], streams_[q]);
    device_.wait(first, ended_[q]);
  }
}

double StreamExecutor::collect(Trace& trace, uint64_t step, Time begin) const {
  // The device tells times from `origin_` on, which was recorded when the issue began.
  Time last = begin;
  const auto at = [&](StreamEvent event) {
    return begin + std::chrono::duration_cast<Duration>(
                       std::chrono::duration<double>(device_.seconds(origin_, event)));
  };

  for (size_t q = 0; q < timings_.size(); ++q)
    for (size_t i = 0; i < timings_[q].size(); ++i) {
      const Time end = at(timings_[q][i].end);
      last = std::max(last, end);
      trace.add({at(timings_[q][i].begin), end, step, static_cast<uint32_t>(q),
                 static_cast<uint32_t>(i), program_.queues[q].instructions[i].op});
    }
  return std::chrono::duration<double>(last - begin).count();
}

std::string StreamExecutor::unfinished() const {
  if (!timed_) return {};
  for (const QueuePlace& place : order_)
    if (!device_.done(timings_[place.queue][place.index].end))
      return describe(program_.queues[place.queue].instructions[place.index]);
  return {};
}

}  // namespace tutti
