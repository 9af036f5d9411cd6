// JSONL: one object per line. Values are handed on while the line is parsed (SAX), so what no
// column names costs nothing but reading its characters.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/nearest.h"
#include "data/core/sources.h"
#include "data/tables/table_rows.h"

namespace tutti {
namespace {

using nlohmann::json;

enum class Kind { kText, kNumber, kTruth };

/// Receives the values of an object's own keys. A call that returns false ends the line; the
/// receiver has then reported why.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual bool value(size_t column, Kind kind, std::string_view text) = 0;
  virtual bool null(size_t column) = 0;
  /// Called if the value is an object or an array, or if the key comes a second time.
  virtual bool refuse(size_t column, const std::string& what) = 0;
};

/// Takes nlohmann's SAX events of one line and passes on the values of wanted keys. Only keys of
/// the outer object count; what is nested deeper is skipped.
class Line final : public nlohmann::json_sax<json> {
 public:
  Line(const std::vector<std::string>& names, Receiver& receiver)
      : receiver_(receiver), seen_(names.size()) {
    for (size_t k = 0; k < names.size(); ++k) columns_.emplace(names[k], k);
  }

  void reset() {
    depth_ = 0;
    wanted_ = kNone;
    std::fill(seen_.begin(), seen_.end(), false);
    if (first_) keys_.clear();
    place_ = 0;
    fault_.clear();
  }
  bool seen(size_t column) const { return seen_[column]; }
  /// Keys of the first record that no column names: one of them may be what a mistyped name meant.
  const std::vector<std::string>& other_keys() const { return keys_; }
  void end_record() { first_ = false; }
  size_t fault_place() const { return place_; }
  /// Empty if the receiver ended the line.
  const std::string& fault() const { return fault_; }

  bool null() override {
    if (depth_ == 0) return not_an_object("null");
    return pass([&](size_t k) { return receiver_.null(k); });
  }
  bool boolean(bool value) override { return give(Kind::kTruth, value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return whole(value); }
  bool number_unsigned(uint64_t value) override { return whole(value); }
  bool number_float(double, const std::string& text) override { return give(Kind::kNumber, text); }
  bool string(std::string& text) override { return give(Kind::kText, text); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open("an object"); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override {
    return depth_ == 0 ? not_an_object("an array") : open("an array");
  }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    // Keys of nested objects are no columns.
    if (depth_ != 1) return true;
    const auto found = columns_.find(name);
    wanted_ = found == columns_.end() ? kNone : found->second;
    if (wanted_ == kNone) {
      constexpr size_t kMostKeys = 100;
      if (first_ && keys_.size() < kMostKeys) keys_.push_back(name);
      return true;
    }
    if (seen_[wanted_]) return receiver_.refuse(wanted_, "the name comes twice in the object");
    seen_[wanted_] = true;
    return true;
  }

  bool parse_error(size_t place, const std::string&, const json::exception& error) override {
    // The library's text is cut down to what helps:
    //   "[json.exception...] parse error at line 1, column 5: syntax error while parsing value -
    //   what; last read: '...'"
    std::string_view what = error.what();
    if (const size_t colon = what.find(": "); colon != std::string_view::npos)
      what.remove_prefix(colon + 2);
    if (const size_t last = what.find("; last read"); last != std::string_view::npos)
      what = what.substr(0, last);
    const std::string text = shown_short(what);
    fault_ = "not JSON: " + text;
    place_ = place;
    return false;
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  static std::string shown_short(std::string_view what) {
    std::string text;
    for (const char c : what.substr(0, 120)) text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    return text;
  }

  // Hands the value on if a column waits for it.
  template <typename Hand>
  bool pass(Hand hand) {
    if (depth_ != 1 || wanted_ == kNone) return true;
    return hand(std::exchange(wanted_, kNone));
  }
  bool give(Kind kind, std::string_view text) {
    if (depth_ == 0)
      return not_an_object(kind == Kind::kText     ? "text"
                           : kind == Kind::kNumber ? "a number"
                                                   : "a truth");
    return pass([&](size_t k) { return receiver_.value(k, kind, text); });
  }

  // A whole number as its digits: receivers read numbers from text.
  template <typename T>
  bool whole(T value) {
    char digits[24];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
    return give(Kind::kNumber, {digits, static_cast<size_t>(end - digits)});
  }

  // A column's value may not be an object or a list; other keys may have any.
  bool open(const char* what) {
    if (depth_ == 1 && wanted_ != kNone)
      return receiver_.refuse(wanted_, fmt::format("{}, not a value", what));
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool not_an_object(const char* what) {
    fault_ = fmt::format("{}, not an object", what);
    place_ = 1;
    return false;
  }

  Receiver& receiver_;
  std::map<std::string, size_t, std::less<>> columns_;
  int64_t depth_ = 0;
  size_t wanted_ = kNone;  ///< the column whose value comes next
  std::vector<bool> seen_;
  std::vector<std::string> keys_;
  bool first_ = true;
  size_t place_ = 0;
  std::string fault_;
};

/// Calls visit(line number, text) for every line that is not blank.
template <typename Visit>
void for_each_line(std::string_view bytes, Visit visit) {
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) visit(number, line);
  }
}

/// Parses one line; false if it is not JSON, no object, or was ended by the receiver.
bool parse_line(std::string_view text, Line& line) {
  line.reset();
  if (!json::sax_parse(text.begin(), text.end(), &line)) return false;
  line.end_record();
  return true;
}

/// Remembers whether a column was in any record, and which other keys the first record had. A
/// column that is nowhere is a mistyped name and not a missing value.
class Presence {
 public:
  explicit Presence(std::vector<std::string> names)
      : names_(std::move(names)), found_(names_.size()) {}
  void record(const Line& line) {
    for (size_t k = 0; k < names_.size(); ++k) found_[k] = found_[k] || line.seen(k);
    if (others_.empty()) others_ = line.other_keys();
    any_ = true;
  }
  /// What to say after "the value is missing", as long as the column has been nowhere.
  std::string hint(size_t k) const {
    if (found_[k]) return "";
    const std::string near = nearest(names_[k], others_);
    return did_you_mean(near.empty() ? "" : shown(near));
  }
  void check(const std::string& path) const {
    if (!any_) return;
    for (size_t k = 0; k < names_.size(); ++k) {
      if (!found_[k])
        throw Error(
            fmt::format("{}: no record has a column {}{}", path, shown(names_[k]), hint(k)));
    }
  }

 private:
  std::vector<std::string> names_;
  std::vector<bool> found_;
  std::vector<std::string> others_;
  bool any_ = false;
};

/// Puts values into a table's row. JSON has types, so text where a number belongs is a fault.
class ToRows final : public Receiver {
 public:
  explicit ToRows(TableRows& rows) : rows_(rows) {}
  bool value(size_t k, Kind kind, std::string_view text) override {
    const Column& column = rows_.column(k);
    const bool by_value = column.role == Column::Role::kNumber ||
                          column.role == Column::Role::kWeight ||
                          (column.role == Column::Role::kTarget && column.size == 0);
    if (by_value && kind != Kind::kNumber) {
      return rows_.bad_value(
          k, fmt::format("{} is {}, not a number", kind == Kind::kText ? shown(text) : text,
                         kind == Kind::kText ? "text" : "a truth"));
    }
    return rows_.text(k, text);
  }
  bool null(size_t k) override { return rows_.missing(k); }
  bool refuse(size_t k, const std::string& what) override { return rows_.bad_value(k, what); }

 private:
  TableRows& rows_;
};

/// Keeps the text of the one column that is read.
class ToText final : public Receiver {
 public:
  bool value(size_t, Kind kind, std::string_view text) override {
    if (kind != Kind::kText) return refuse(0, fmt::format("{} is not text", text));
    text_ = text;
    return true;
  }
  bool null(size_t) override {
    missing_ = true;
    return true;
  }
  bool refuse(size_t, const std::string& what) override {
    fault_ = what;
    return false;
  }
  void reset() {
    missing_ = false;
    fault_.clear();
  }
  std::string text_, fault_;
  bool missing_ = false;
};

std::vector<std::string> names_of(const std::vector<Column>& columns) {
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  return names;
}

}  // namespace

Table parse_jsonl(std::string_view bytes, const std::string& path, const DataConfig& config,
                  const std::vector<Column>& columns, DataReport& report, bool probabilities) {
  TableRows rows(path, config, columns, report, probabilities);
  ToRows receiver(rows);
  Line line(names_of(columns), receiver);
  Presence presence(names_of(columns));
  for_each_line(bytes, [&](int64_t number, std::string_view text) {
    rows.begin(number);

    // What the receiver refused is reported already; the rest is a malformed line.
    if (!parse_line(text, line)) {
      if (!line.fault().empty())
        rows.malformed(fmt::format("{}:{}", number, line.fault_place()), line.fault());
      return;
    }
    presence.record(line);

    // A key that is not there is a missing value.
    for (size_t k = 0; k < columns.size(); ++k) {
      if (!line.seen(k) && !rows.missing(k, presence.hint(k))) return;
    }
    rows.end();
  });
  presence.check(path);
  return rows.take();
}

std::string read_jsonl_text(const std::string& path, const std::string& column,
                            const DataConfig& config, DataReport& report) {
  const std::string bytes = read_gz(path);
  BadRecords bad(config.bad == BadRecord::kSkip, report);
  ToText receiver;
  Line line({column}, receiver);
  Presence presence({column});
  std::string joined;
  for_each_line(bytes, [&](int64_t number, std::string_view text) {
    receiver.reset();
    if (!parse_line(text, line)) {
      bad.add(line.fault().empty()
                  ? fmt::format("{}:{} ({}): {}", path, number, column, receiver.fault_)
                  : fmt::format("{}:{}:{}: {}", path, number, line.fault_place(), line.fault()));
      return;
    }
    presence.record(line);

    // Records become lines of one text.
    if (line.seen(0) && !receiver.missing_) {
      joined += receiver.text_;
      joined += '\n';
    } else if (config.missing == MissingValue::kDrop) {
      bad.leave_out(fmt::format("{}:{} ({}): the value is missing", path, number, column));
    } else {
      bad.add(fmt::format("{}:{} ({}): the value is missing{}", path, number, column,
                          presence.hint(0)));
    }
  });
  presence.check(path);
  if (joined.empty())
    throw Error(fmt::format("{}: no record has text in column {}", path, shown(column)));
  return joined;
}

}  // namespace tutti
