// Lines for people go to stderr (base/text/terminal.h); events for machines are here, one JSON
// object per line. Sinks are passed in; nothing is global.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tutti {

/// Where events go: a run's events.jsonl, a test's vector, or nowhere. Thread-safe.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void write(const nlohmann::json& event) = 0;
};

/// Appends a line per event. Each line is written by one write(2), so a process that is
/// killed leaves whole lines. Throws Error naming the file when it cannot be opened or
/// written (a full disk).
std::unique_ptr<EventSink> open_event_file(const std::string& path);

}  // namespace tutti
