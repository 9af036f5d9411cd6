// The values a job file can hold, and how they are written.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tutti {

using Value = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>>;

/// The alternatives of Value, in its order.
enum class ValueType { kInteger, kNumber, kBoolean, kString, kIntegers, kNumbers, kStrings };

inline ValueType type_of(const Value& value) { return static_cast<ValueType>(value.index()); }
/// "an integer", "a number", "true or false", "a string", "an array of integers", of numbers, of
/// strings.
std::string type_name(ValueType type);
/// The value as TOML; parses back to the same value, to the last bit.
std::string value_text(const Value& value);
/// The value for people to read: a string has no quotes.
std::string plain_text(const Value& value);

}  // namespace tutti
