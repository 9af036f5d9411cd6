// The two tables of what is planned. A row names what to use until then, since a refusal without a
// way out helps nobody.
#include "config/not_yet.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "config/schema.h"

namespace tutti {

namespace {

const char* const kCollective = "ranks are equal and meet in collectives; leave it out";

}  // namespace

std::span<const LaterKey> later_keys() {
  static const std::vector<LaterKey> all = {
      {"numerics", "threads", int64_t{1}, "a rank computes on 1 thread; more ranks use more cores"},
      {"numerics", "codec", std::string("none"), "gradients travel as float32: \"none\""},
      {"numerics", "codec_lanes", {}, "gradients travel as float32; leave it out"},
      {"layout", "kind", std::string("collective"), "the nearest that is: \"collective\""},
      {"elastic", "enabled", false, "a run that lost a rank goes on with --resume"},
      {"elastic", "liveness", {}, "layout.timeout says how long a silent rank is waited for"},
      {"elastic", "audit", {}, "`tutti verify` compares the bits of layouts; leave it out"},
      {"ps", "servers", int64_t{1}, kCollective},
      {"ps", "workers", int64_t{2}, kCollective},
      {"ps", "mode", std::string("sync"), kCollective},
      {"ps", "staleness", int64_t{0}, kCollective},
      {"ps", "replicas", int64_t{1}, kCollective},
  };
  return all;
}

std::span<const LaterValue> later_values() {
  static const std::vector<LaterValue> all = {
      {"numerics", "precision", "float8", "the nearest that is: \"bfloat16\""},
      {"layout", "transport", "ucx", "the nearest that is: \"tcp\""},
      {"layout", "transport", "mpi", "the nearest that is: \"tcp\""},
  };
  return all;
}

const LaterKey* later_key(std::string_view section, std::string_view name) {
  for (const LaterKey& key : later_keys())
    if (key.section == section && key.name == name) return &key;
  return nullptr;
}

const LaterValue* later_value(std::string_view section, std::string_view name,
                              std::string_view value) {
  for (const LaterValue& later : later_values())
    if (later.section == section && later.name == name && later.value == value) return &later;
  return nullptr;
}

bool later_section(std::string_view section) {
  const auto here = [&](const auto& one) { return one.section == section; };
  return std::any_of(later_keys().begin(), later_keys().end(), here) &&
         std::none_of(sections().begin(), sections().end(),
                      [&](const Section& known) { return known.name == section; });
}

std::string not_there_yet(const std::string& full_name, const Value& value,
                          const std::string& instead) {
  return fmt::format("{} = {} is not there yet; {}", full_name, value_text(value), instead);
}

}  // namespace tutti
