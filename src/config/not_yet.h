// Keys and values that Tutti is meant to have and does not: a job that asks for one is refused with
// what there is instead, where a mistyped one would be refused as unknown. Neither `explain` nor
// docs/job.md lists them. Whoever builds one moves its row to config/keys.cc or enums.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/value.h"

namespace tutti {

struct LaterKey {
  std::string section, name;
  /// The value that job.toml files of earlier builds have, where the key did nothing. It is
  /// accepted, so that their runs go on. None if no build had the key.
  std::optional<Value> fallback;
  std::string instead;  ///< "a run that lost a rank goes on with --resume"
};

/// One value of a key that has others.
struct LaterValue {
  std::string section, name, value, instead;
};

/// Null when there is none.
const LaterKey* later_key(std::string_view section, std::string_view name);
const LaterValue* later_value(std::string_view section, std::string_view name,
                              std::string_view value);
/// Whether all keys of the section are still to come.
bool later_section(std::string_view section);
std::span<const LaterKey> later_keys();
std::span<const LaterValue> later_values();

/// "elastic.enabled = true is not there yet; a run that lost a rank goes on with --resume".
std::string not_there_yet(const std::string& full_name, const Value& value,
                          const std::string& instead);

}  // namespace tutti
