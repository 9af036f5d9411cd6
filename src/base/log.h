// Lines for people (stderr) and events for machines (one JSON object a line). The sinks are passed
// in; nothing is global.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tutti {

/// Where events go: events.jsonl of a run, a test's vector, nowhere. Thread-safe.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void write(const nlohmann::json& event) = 0;
};

/// Appends a line per event; each line is written with one write(2), so a killed process leaves
/// whole lines. Throws Error naming the file when it cannot be opened or written (a full disk).
std::unique_ptr<EventSink> open_event_file(const std::string& path);

}  // namespace tutti
