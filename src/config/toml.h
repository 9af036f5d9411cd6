// TOML text as a flat list of entries. The only place that knows the TOML library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace tutti {

struct TomlEntry {
  std::string section;  ///< "" at the top level
  std::string key;      ///< "" for a section's header: [section]
  int line = 0;
  std::optional<Value> value;  ///< none: a kind that no job key has, said in `kind`
  /// "a date", "a table", "an array of mixed values"; with a header: "" or what stands in its place
  std::string kind;
};

struct TomlDocument {
  std::vector<TomlEntry> entries;  ///< in the order of their lines
  /// Set when the text is not TOML; entries are then empty.
  std::string fault;
  int fault_line = 0;
};

TomlDocument read_toml(std::string_view text);

/// One value as typed after `--set key=`: TOML, or else a bare word that is taken as a string.
/// None: neither.
std::optional<TomlEntry> read_toml_value(const std::string& text);

}  // namespace tutti
