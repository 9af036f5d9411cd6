// Parses data.columns word by word. Every fault names its text, and the texts are judged together
// only when each is good by itself.
#include "config/check/table_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "config/nearest.h"

namespace tutti {
namespace {

using Role = Column::Role;
using Scale = ValueScale;

constexpr int64_t kMostClasses = 1 << 20;
constexpr std::string_view kBlank = " \t";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!(text = trim(text)).empty()) {
    const size_t end = std::min(text.find_first_of(kBlank), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

/// One text of data.columns, from left to right.
class ColumnText {
 public:
  ColumnText(const std::string& text, std::vector<std::string>& faults)
      : text_(text), faults_(faults) {}

  Column parse() {
    std::string_view rest = take_name();
    if (rest.empty()) {
      if (good_) fault("expected \"name: role option...\"");
      return column_;
    }
    const size_t end = std::min(rest.find_first_of(kBlank), rest.size());
    if (!take_role(rest.substr(0, end))) return column_;
    take_options(trim(rest.substr(end)));
    return column_;
  }
  bool good() const { return good_; }

 private:
  void fault(const std::string& what) {
    good_ = false;
    faults_.push_back(fmt::format("data.columns: \"{}\": {}", text_, what));
  }
  void unknown(std::string_view kind, std::string_view word,
               const std::vector<std::string>& known) {
    const std::string near = nearest(word, known);
    fault(near.empty() ? fmt::format("{} \"{}\" is none of {}", kind, word, fmt::join(known, ", "))
                       : fmt::format("unknown {} \"{}\"{}", kind, word, did_you_mean(near)));
  }

  /// Takes the name off the text and returns what follows its colon. A name in single quotes may
  /// have a colon in it.
  std::string_view take_name() {
    std::string_view text = trim(text_);
    size_t colon = text.find(':');
    if (text.starts_with('\'')) {
      const size_t end = text.find('\'', 1);
      if (end == std::string_view::npos) {
        fault("the quote of the name does not end");
        return {};
      }
      column_.name = text.substr(1, end - 1);
      text.remove_prefix(end + 1);
      text = trim(text);
      colon = text.starts_with(':') ? 0 : std::string_view::npos;
    } else if (colon != std::string_view::npos) {
      column_.name = trim(text.substr(0, colon));
    }

    // A text without a colon has a name and no role, which the caller reports.
    if (colon == std::string_view::npos) return {};
    if (column_.name.empty()) {
      fault("the column has no name");
      return {};
    }
    return trim(text.substr(colon + 1));
  }

  bool take_role(std::string_view word) {
    if (const std::optional<Role> role = value_named<Role>(word)) {
      column_.role = *role;
      return true;
    }
    std::vector<std::string> known;
    for (const auto& role : kNamesOf<Role>) known.emplace_back(role.name);
    unknown("role", word, known);
    return false;
  }

  void take_options(std::string_view rest) {
    switch (column_.role) {
      case Role::kNumber:
        for (const std::string& word : words_of(rest)) take_number_option(word);
        break;
      case Role::kWeight:
      case Role::kText:
        for (const std::string& word : words_of(rest)) unknown_option(word, {});
        break;
      case Role::kCategory:
        take_classes(rest, {"hash", "classes"});
        break;
      case Role::kOneHot:
      case Role::kTarget:
        take_classes(rest, {"classes"});
        break;
    }
  }

  void unknown_option(std::string_view word, const std::vector<std::string>& known) {
    if (known.empty()) {
      fault(fmt::format("\"{}\": this role has no options", word));
    } else {
      unknown("option", word, known);
    }
  }

  void take_number_option(const std::string& word) {
    const std::string standardise(name_of(Scale::kStandardise)), min_max(name_of(Scale::kMinMax));
    const Scale before = column_.scale;
    if (word == standardise || word == min_max) {
      column_.scale = *value_named<Scale>(word);
    } else if (word == "log") {
      column_.log = true;
    } else {
      unknown_option(word, {standardise, min_max, "log"});
    }
    if (before != Scale::kNone && before != column_.scale)
      fault(fmt::format("{} and {} exclude each other", standardise, min_max));
  }

  /// Values may have blanks in them: where there is a |, all of the rest is values.
  void take_classes(std::string_view rest, const std::vector<std::string>& sized) {
    if (rest.find('|') != std::string_view::npos) {
      take_values(rest);
      return;
    }

    // Otherwise a number of values is given, once, by an option that the role knows.
    std::vector<std::string> known;
    for (const std::string& name : sized) known.push_back(name + "=");
    for (const std::string& word : words_of(rest)) {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      if (equals == std::string::npos ||
          std::find(sized.begin(), sized.end(), name) == sized.end()) {
        std::vector<std::string> hints = known;
        if (equals == std::string::npos) hints.emplace_back("first|second|...");
        unknown_option(equals == std::string::npos ? word : name + "=", hints);
      } else if (column_.size > 0) {
        fault("its number of values is given twice");
      } else {
        take_size(name, word.substr(equals + 1));
      }
    }
    if (good_ && column_.size == 0 && column_.role != Role::kTarget) {
      fault(fmt::format("say its values: first|second|..., {}N", fmt::join(known, "N or ")));
    }
  }

  void take_size(const std::string& name, const std::string& digits) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    const int64_t least = name == "hash" ? 1 : 2;
    if (error != std::errc() || end != digits.data() + digits.size() || size < least ||
        size > kMostClasses) {
      fault(fmt::format("{}={} is not a whole number from {} to {}", name, digits, least,
                        kMostClasses));
      return;
    }
    column_.size = size;
    column_.hashed = name == "hash";
  }

  void take_values(std::string_view rest) {
    std::set<std::string> seen;
    for (size_t begin = 0; begin <= rest.size();) {
      const size_t end = std::min(rest.find('|', begin), rest.size());
      std::string value(trim(rest.substr(begin, end - begin)));
      if (value.empty()) fault("one of its values is empty");
      if (!seen.insert(value).second) fault(fmt::format("its value \"{}\" is given twice", value));
      column_.values.push_back(std::move(value));
      begin = end + 1;
    }
    column_.size = static_cast<int64_t>(column_.values.size());
    if (column_.size > kMostClasses) fault(fmt::format("more than {} values", kMostClasses));
  }

  const std::string& text_;
  std::vector<std::string>& faults_;
  Column column_;
  bool good_ = true;
};

void check_together(const std::vector<Column>& columns, std::vector<std::string>& faults) {
  std::set<std::string> names;
  int64_t class_targets = 0;
  for (const Column& column : columns) {
    if (!names.insert(column.name).second) {
      faults.push_back(fmt::format("data.columns: column \"{}\" is given twice", column.name));
    }
    class_targets += column.role == Role::kTarget && column.size > 0 ? 1 : 0;
  }
  const ColumnSizes sizes = sizes_of(columns);
  if (sizes.weights > 1) faults.emplace_back("data.columns: more than one column is the weight");
  if (class_targets > 0 && sizes.targets > 1) {
    faults.emplace_back("data.columns: a target of classes must be the only target");
  }
  if (sizes.texts > 0 && columns.size() > 1)
    faults.emplace_back("data.columns: a text must be the only column");
}

}  // namespace

std::vector<Column> parse_columns(const std::vector<std::string>& texts,
                                  std::vector<std::string>& faults) {
  std::vector<Column> columns;
  for (const std::string& text : texts) {
    ColumnText one(text, faults);
    Column column = one.parse();
    if (one.good()) columns.push_back(std::move(column));
  }
  check_together(columns, faults);
  return columns;
}

ColumnSizes sizes_of(const std::vector<Column>& columns) {
  ColumnSizes sizes;
  for (const Column& column : columns) {
    switch (column.role) {
      // Of one-hot columns the model sees only numbers: one for each of their values.
      case Role::kNumber:
        sizes.numbers += 1;
        break;
      case Role::kOneHot:
        sizes.numbers += column.size;
        break;

      // Categories are not added up, since each has an embedding of its own.
      case Role::kCategory:
        sizes.categories.push_back(column.size);
        break;
      case Role::kWeight:
        sizes.weights += 1;
        break;

      // A number as a target has no classes, and a target of classes is the only one.
      case Role::kTarget:
        sizes.targets += 1;
        sizes.classes = std::max(sizes.classes, column.size);
        break;
      case Role::kText:
        sizes.texts += 1;
        break;
    }
  }
  return sizes;
}

}  // namespace tutti
