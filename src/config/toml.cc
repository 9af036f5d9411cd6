// Flattens what the TOML library has parsed. The library asserts on some headers, so its assertion
// is turned into an exception before its header is included.
#include "config/toml.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tutti::bad_header {

/// toml++ 3.3 asserts, and so would abort, where a section's header does not start with a key:
/// "[=", "[[[a]]]" (its pull request 301). Here the assertion throws instead.
struct Thrown {};
[[noreturn]] inline void fail() { throw Thrown{}; }

}  // namespace tutti::bad_header

#undef NDEBUG  // with it the library assumes instead of asserting
#define TOML_ASSERT(condition) ((condition) ? void() : ::tutti::bad_header::fail())
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace tutti {

namespace {

/// An array of one kind of values. Integers among numbers count as numbers, and an empty array is
/// one of integers.
std::optional<Value> list_of(const toml::array& array) {
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> strings;
  for (const auto& element : array) {
    if (const auto* v = element.as_integer()) integers.push_back(v->get());
    if (const auto v = element.value<double>(); v && element.is_number()) numbers.push_back(*v);
    if (const auto* v = element.as_string()) strings.push_back(v->get());
  }
  if (integers.size() == array.size()) return integers;
  if (numbers.size() == array.size()) return numbers;
  if (strings.size() == array.size()) return strings;
  return std::nullopt;
}

std::string kind_of(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array_of_tables()) return "an array of tables";
  if (node.is_array()) return "an array of other values";
  return "a date or time";
}

TomlEntry entry_of(std::string section, const toml::key& key, const toml::node& node) {
  TomlEntry entry{std::move(section),
                  std::string(key.str()),
                  static_cast<int>(key.source().begin.line),
                  {},
                  {}};
  if (auto* v = node.as_integer()) entry.value = v->get();
  if (auto* v = node.as_floating_point()) entry.value = v->get();
  if (auto* v = node.as_boolean()) entry.value = v->get();
  if (auto* v = node.as_string()) entry.value = v->get();
  if (auto* v = node.as_array()) entry.value = list_of(*v);
  if (!entry.value) entry.kind = kind_of(node);
  return entry;
}

std::vector<TomlEntry> flatten(const toml::table& top) {
  std::vector<TomlEntry> entries;
  for (const auto& [key, node] : top) {
    const auto* section = node.as_table();
    if (!section) {
      entries.push_back(entry_of("", key, node));
      continue;
    }
    entries.push_back(
        {std::string(key.str()), "", static_cast<int>(key.source().begin.line), {}, {}});
    for (const auto& [inner_key, inner] : *section) {
      entries.push_back(entry_of(std::string(key.str()), inner_key, inner));
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

/// The first line whose header does not start with a key.
int line_of_bad_header(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '[') continue;
    if (line.compare(at, 2, "[[") == 0) ++at;
    at = line.find_first_not_of(" \t", at + 1);
    const bool key = at != std::string::npos &&
                     (std::isalnum(static_cast<unsigned char>(line[at])) ||
                      std::string_view("_-\"'").find(line[at]) != std::string_view::npos);
    if (!key) return number;
  }
  return 1;
}

}  // namespace

TomlDocument read_toml(std::string_view text) {
  try {
    return {flatten(toml::parse(text)), "", 0};
  } catch (const toml::parse_error& error) {
    return {{}, std::string(error.description()), static_cast<int>(error.source().begin.line)};
  } catch (const bad_header::Thrown&) {
    return {{}, "a section is written [section]", line_of_bad_header(text)};
  }
}

std::optional<TomlEntry> read_toml_value(const std::string& text) {
  // Exactly one entry: a line break in the text must not smuggle in a second one.
  auto alone = [](const TomlDocument& document) {
    return document.fault.empty() && document.entries.size() == 1;
  };
  TomlDocument document = read_toml("value = " + text);
  if (!alone(document)) {
    const bool opens =
        !text.empty() && std::string_view("\"'[{").find(text.front()) != std::string_view::npos;
    if (opens || text.empty()) return std::nullopt;
    document = read_toml("value = " + value_text(Value(text)));  // refused where it is not UTF-8
  }
  if (!alone(document)) return std::nullopt;
  return document.entries.front();
}

}  // namespace tutti
