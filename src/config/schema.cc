// Questions to the schema: finding keys, guessing what was meant, and judging values.
#include "config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/nearest.h"
#include "config/not_yet.h"

namespace tutti {

namespace {

// 65536 and 0.1 as they are, but 1e12 for 1000000000000.
std::string bound_text(double value) {
  if (std::abs(value) < 1e7) return fmt::format("{}", value);
  std::string text = fmt::format("{:g}", value);
  std::erase(text, '+');
  return text;
}

std::vector<std::string> quoted(const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const auto& word : words) all.push_back(value_text(Value(word)));
  return all;
}

bool in_limits(const Limits& limits, const Value& value) {
  if (const auto* v = std::get_if<int64_t>(&value)) return limits.holds(static_cast<double>(*v));
  if (const auto* v = std::get_if<double>(&value)) return limits.holds(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) {
    return std::all_of(v->begin(), v->end(),
                       [&](int64_t x) { return limits.holds(static_cast<double>(x)); });
  }
  if (const auto* v = std::get_if<std::vector<double>>(&value)) {
    return std::all_of(v->begin(), v->end(), [&](double x) { return limits.holds(x); });
  }
  return true;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

// Written so that NaN never holds.
bool Limits::holds(double value) const {
  return std::isfinite(value) && value >= low && (below_high ? value < high : value <= high);
}

std::string Limits::text() const {
  const std::string from = std::isfinite(low) ? "at least " + bound_text(low) : "";
  const std::string to =
      std::isfinite(high) ? (below_high ? "below " : "at most ") + bound_text(high) : "";
  if (from.empty() || to.empty()) return from + to;
  if (!below_high) return fmt::format("from {} to {}", bound_text(low), bound_text(high));
  return from + " and " + to;
}

const Key* find_key(std::string_view section, std::string_view name) {
  for (const auto& key : keys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

const Key& key_named(std::string_view full_name) {
  const size_t dot = full_name.find('.');
  const Key* key = find_key(full_name.substr(0, dot), full_name.substr(dot + 1));
  TUTTI_CHECK(key != nullptr, "no key is called {}", full_name);
  return *key;
}

std::string nearest_key(std::string_view section, std::string_view name) {
  std::vector<std::string> here, everywhere;
  for (const auto& key : keys()) {
    if (key.section == section) here.push_back(key.name);
    everywhere.push_back(key.name);
  }
  // The exact name in another section beats a similar one in this: [model] steps is train.steps.
  const bool elsewhere = contains(everywhere, std::string(name));
  if (std::string found = nearest(name, here); !found.empty() && !elsewhere)
    return std::string(section) + "." + found;
  const std::string found = nearest(name, everywhere);
  for (const auto& key : keys()) {
    if (!found.empty() && key.name == found) return key.full_name();
  }
  return {};
}

std::string nearest_section(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& section : sections()) names.push_back(section.name);
  return nearest(name, names);
}

std::optional<Value> convert(const Key& key, const Value& value) {
  if (type_of(value) == key.type()) return value;
  if (key.automatic && value == key.fallback) return value;
  if (key.type() == ValueType::kNumber && type_of(value) == ValueType::kInteger) {
    return static_cast<double>(std::get<int64_t>(value));
  }
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    if (key.type() == ValueType::kNumbers) return std::vector<double>(list->begin(), list->end());
    if (key.type() == ValueType::kStrings && list->empty()) return std::vector<std::string>{};
  }
  return std::nullopt;
}

std::string fault_of(const Key& key, const Value& value) {
  if (!in_limits(key.limits, value)) {
    const std::string each = key.type() >= ValueType::kIntegers ? "each" : "it";
    return fmt::format("{} = {} is out of range: {} must be {}", key.full_name(), value_text(value),
                       each, key.limits.text().empty() ? "finite" : key.limits.text());
  }
  if (const auto* word = std::get_if<std::string>(&value); word && !key.allowed.empty()) {
    if (const LaterValue* later = later_value(key.section, key.name, *word))
      return not_there_yet(key.full_name(), value, later->instead);
    if (!contains(key.allowed, *word)) {
      const std::string near = nearest(*word, key.allowed);
      return fmt::format("{} = {} is not one of {}{}", key.full_name(), value_text(value),
                         fmt::join(quoted(key.allowed), ", "),
                         did_you_mean(near.empty() ? "" : value_text(Value(near))));
    }
  }
  return {};
}

}  // namespace tutti
