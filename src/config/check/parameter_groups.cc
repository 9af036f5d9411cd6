// Words between spaces: a pattern, then options. A text that has a fault yields no group, so later
// checks see only groups that mean something.
#include "config/check/parameter_groups.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "config/nearest.h"

namespace tutti {

namespace {

const std::vector<std::string>& option_names() {
  static const std::vector<std::string> names = {"lr", "weight_decay", "frozen"};
  return names;
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  std::vector<std::string_view> words;
  for (size_t begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

/// A finite number at least 0 that the whole text is.
std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0)
    return {};
  return value;
}

/// Sets the option of one word; returns what is wrong with it, or "".
std::string set_option(std::string_view word, ParameterGroup& group) {
  const size_t equals = word.find('=');
  const std::string name(word.substr(0, equals));
  const bool valued = equals != std::string_view::npos;
  if (name == "frozen") {
    if (valued) return fmt::format("\"{}\": frozen has no value", word);
    group.frozen = true;
    return {};
  }

  // Every other option has a value.
  if (name != "lr" && name != "weight_decay") {
    const std::string near = nearest(name, option_names());
    return fmt::format(
        "\"{}\" is no option{}", name,
        near.empty() ? "; known are lr=, weight_decay= and frozen" : did_you_mean(near));
  }
  if (!valued) return fmt::format("{0} has no value; write {0}=NUMBER", name);
  const auto value = number_of(word.substr(equals + 1));
  if (!value) return fmt::format("\"{}\": not a number at least 0", word);
  if (name == "lr") {
    group.lr = *value;
  } else {
    group.weight_decay = value;
  }
  return {};
}

}  // namespace

std::vector<ParameterGroup> parse_groups(const std::vector<std::string>& texts,
                                         std::vector<std::string>& faults) {
  std::vector<ParameterGroup> groups;
  for (const std::string& text : texts) {
    const auto words = words_of(text);
    const size_t faults_before = faults.size();
    const auto fault = [&](const std::string& what) {
      faults.push_back(fmt::format("train.groups: \"{}\": {}", text, what));
    };

    // No name of a parameter has a "=" in it, so a first word with one is an option whose pattern
    // was forgotten.
    ParameterGroup group;
    const bool pattern = !words.empty() && words.front() != "frozen" &&
                         words.front().find('=') == std::string_view::npos;
    if (pattern) {
      group.pattern = words.front();
    } else {
      fault("no pattern; write \"PATTERN OPTION...\", such as \"*.bias weight_decay=0\"");
    }

    // All options of a text are read, so that all of its faults are named at once.
    for (size_t i = pattern ? 1 : 0; i < words.size(); ++i) {
      if (const std::string what = set_option(words[i], group); !what.empty()) fault(what);
    }
    if (faults.size() == faults_before) groups.push_back(std::move(group));
  }
  return groups;
}

const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups, std::string_view name) {
  for (const ParameterGroup& group : groups) {
    if (fits(group.pattern, name)) return &group;
  }
  return nullptr;
}

// After a mismatch only the last * can give way by one more character: whatever an earlier one took
// is as good as any.
bool fits(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace tutti
