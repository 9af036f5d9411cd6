#include "config/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// fmt prints the shortest digits that read back exactly; TOML tells a float from an integer by its point or exponent.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

struct Text {
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return number(v); }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return quoted(v); }
  std::string operator()(const std::vector<int64_t>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
};

}  // namespace

std::string type_name(ValueType type) {
  switch (type) {
    case ValueType::kInteger:
      return "an integer";
    case ValueType::kNumber:
      return "a number";
    case ValueType::kBoolean:
      return "true or false";
    case ValueType::kString:
      return "a string";
    case ValueType::kIntegers:
      return "an array of integers";
  }
  return {};
}

std::string value_text(const Value& value) { return std::visit(Text{}, value); }

}  // namespace tutti
