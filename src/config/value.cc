// Writes values as TOML that reads back to the same bits, and names their types for messages.
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

// fmt prints the shortest digits that read back exactly; TOML tells a float from an integer by its
// point or exponent.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

struct Text {
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return number(v); }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return quoted(v); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return fmt::format("[{}]", fmt::join(v, ", "));
  }
  std::string operator()(const std::vector<double>& v) const { return list(v, number); }
  std::string operator()(const std::vector<std::string>& v) const { return list(v, quoted); }

  template <class T, class F>
  static std::string list(const std::vector<T>& values, F text_of) {
    std::vector<std::string> texts;
    for (const T& value : values) texts.push_back(text_of(value));
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
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
    case ValueType::kNumbers:
      return "an array of numbers";
    case ValueType::kStrings:
      return "an array of strings";
  }
  return {};
}

std::string value_text(const Value& value) { return std::visit(Text{}, value); }

std::string plain_text(const Value& value) {
  const auto* word = std::get_if<std::string>(&value);
  return word ? *word : value_text(value);
}

}  // namespace tutti
