// A record costs a lock and a copy of a few words; names are looked up in the program only when the
// trace is written.
#include "exec/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tutti {

using nlohmann::json;

Trace::Trace(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {}

void Trace::add(const TraceRecord& record) {
  const std::lock_guard lock(mutex_);
  totals_[static_cast<int>(record.op)] += record.end - record.begin;

  // The oldest record gives way; its time stays in the totals.
  if (ring_.size() < capacity_) {
    ring_.push_back(record);
    return;
  }
  ring_[next_] = record;
  next_ = (next_ + 1) % capacity_;
}

void Trace::add_wait(uint32_t queue, Duration waited) {
  const std::lock_guard lock(mutex_);
  if (waits_.size() <= queue) waits_.resize(queue + 1);
  waits_[queue] += waited;
}

double Trace::seconds(Op op) const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(totals_[static_cast<int>(op)]).count();
}

double Trace::waited(uint32_t queue) const {
  const std::lock_guard lock(mutex_);
  return queue < waits_.size() ? std::chrono::duration<double>(waits_[queue]).count() : 0;
}

std::vector<TraceRecord> Trace::records() const {
  const std::lock_guard lock(mutex_);

  // The ring from its oldest record on, then its front. While it is not full, next_ is 0.
  std::vector<TraceRecord> list(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  list.insert(list.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
  return list;
}

std::string describe(const Instruction& instruction) { return to_string(instruction); }

std::vector<TraceEvent> trace_events(const Trace& trace, const Program& program, Time origin,
                                     uint64_t before) {
  const auto micros = [&](Time t) {
    return std::chrono::duration<double, std::micro>(t - origin).count();
  };

  // People count steps from 1, over the whole run.
  std::vector<TraceEvent> events;
  for (const TraceRecord& r : trace.records()) {
    const Queue& queue = program.queues.at(r.queue);
    const Instruction& instruction = queue.instructions.at(r.index);
    events.push_back({program.rank, queue.name, op_name(instruction.op), describe(instruction),
                      before + r.step + 1, micros(r.begin), micros(r.end)});
  }
  return events;
}

std::string trace_line(const TraceEvent& e) {
  return json{{"rank", e.rank}, {"queue", e.queue},       {"name", e.name},    {"detail", e.detail},
              {"step", e.step}, {"begin_us", e.begin_us}, {"end_us", e.end_us}}
      .dump();
}

TraceEvent parse_trace_line(const std::string& line) {
  // A line that another program wrote may be JSON and still lack a field.
  try {
    const json j = json::parse(line);
    return {j.at("rank"), j.at("queue"),    j.at("name"),  j.at("detail"),
            j.at("step"), j.at("begin_us"), j.at("end_us")};
  } catch (const json::exception&) {
    throw Error(fmt::format("not a line of a trace: {}", line.substr(0, 60)));
  }
}

std::string chrome_trace(const std::vector<TraceEvent>& events) {
  json list = json::array();
  std::map<int, std::map<std::string, int>> tids;  // by rank and queue, in order of appearance

  // The format wants numbers for processes and threads, and their names once, before they are used.
  for (const TraceEvent& e : events) {
    auto& queues = tids[e.rank];
    const auto [it, fresh] = queues.try_emplace(e.queue, static_cast<int>(queues.size()));
    if (fresh && queues.size() == 1) {
      list.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", e.rank},
                      {"args", {{"name", fmt::format("rank {}", e.rank)}}}});
    }
    if (fresh) {
      list.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", e.rank},
                      {"tid", it->second},
                      {"args", {{"name", e.queue}}}});
    }

    // The instruction itself, a complete event ("X"), never shorter than nothing,
    // whatever the clocks say.
    list.push_back({{"ph", "X"},
                    {"name", e.name},
                    {"cat", e.queue},
                    {"pid", e.rank},
                    {"tid", it->second},
                    {"ts", e.begin_us},
                    {"dur", std::max(0.0, e.end_us - e.begin_us)},
                    {"args", {{"detail", e.detail}, {"step", e.step}}}});
  }
  return json{{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace tutti
