// A Job as text: TOML with or without origins, and the differences of two jobs.
#include <fmt/format.h>

#include <algorithm>

#include "config/job.h"
#include "config/schema.h"

namespace tutti {

namespace {

constexpr size_t kWidest = 24;  // a longer value pushes only its own comment to the right

/// A CPU's job says nothing of what is a GPU's alone, so that it reads back as one that left it
/// out.
bool is_idle(const Key& key, const Job& job) {
  return key.gpu && job.numerics.device == DeviceKind::kCpu && key.get(job) == key.fallback;
}

std::string section_text(const Section& section, const Job& job, bool origins) {
  size_t names = 0, values = 0;
  for (const auto& key : keys()) {
    if (key.section != section.name || is_idle(key, job)) continue;
    names = std::max(names, key.name.size());
    const size_t width = value_text(key.get(job)).size();
    if (width <= kWidest) values = std::max(values, width);
  }

  // Names, values and origins are columns as wide as what is in them.
  std::string text = fmt::format("\n[{}]", section.name);
  text += origins ? fmt::format("  # {}\n", section.help) : "\n";
  for (const auto& key : keys()) {
    if (key.section != section.name || is_idle(key, job)) continue;
    const std::string value = value_text(key.get(job));
    if (!origins) {
      text += fmt::format("{} = {}\n", key.name, value);
      continue;
    }
    const auto origin = job.origin.find(key.full_name());
    text += fmt::format("{:{}} = {:{}}  # {}\n", key.name, names, value, values,
                        origin == job.origin.end() ? "set by the program" : origin->second.text());
  }
  return text;
}

std::string text_of(const Job& job, bool origins) {
  std::string text = fmt::format("name = {}\n", value_text(Value(job.name)));
  for (const auto& section : sections()) text += section_text(section, job, origins);
  return text;
}

/// Whether a run may go on with another value: on another device, in another precision.
bool is_device(const Key& key, const Job& a, const Job& b) {
  if (key.float16) return a.numerics.precision != b.numerics.precision;
  return key.may_change;
}

}  // namespace

std::string Origin::text() const {
  switch (kind) {
    case Kind::kDefault:
      return "default";
    case Kind::kBuiltin:
    case Kind::kFile:
      return place;
    case Kind::kSetting:
      return "--set";
    case Kind::kResolved:
      return "resolved";
    case Kind::kPlanned:
      return "planned";
  }
  return {};
}

std::string explain(const Job& job) { return text_of(job, true); }

std::string to_toml(const Job& job) { return text_of(job, false); }

std::vector<std::string> job_differences(const Job& a, const Job& b) {
  std::vector<std::string> differences;
  for (const auto& key : keys()) {
    if (key.layout || is_device(key, a, b) || key.get(a) == key.get(b)) continue;
    differences.push_back(fmt::format("{} is {}, not {}", key.full_name(), value_text(key.get(a)),
                                      value_text(key.get(b))));
  }
  return differences;
}

std::vector<std::string> device_differences(const Job& a, const Job& b) {
  std::vector<std::string> differences;
  for (const auto& key : keys()) {
    if (!is_device(key, a, b) || key.get(a) == key.get(b)) continue;
    differences.push_back(fmt::format("{}: {} -> {}", key.full_name(), plain_text(key.get(a)),
                                      plain_text(key.get(b))));
  }
  return differences;
}

}  // namespace tutti
