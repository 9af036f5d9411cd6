// Checks the values of records and puts them into a table. All formats come through here, so a
// value is read and reported alike in each.
#include "data/tables/table_rows.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/hash.h"
#include "base/portable_math.h"
#include "config/nearest.h"

namespace tutti {
namespace {

using As = Column::Role;
constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// What a text is as a number.
enum class Parsed { kGood, kNotANumber, kOutOfRange, kNotFinite };

template <typename T>
Parsed parse_number(std::string_view text, T& value) {
  // from_chars does not take a plus sign.
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument)
    return Parsed::kNotANumber;
  if (error == std::errc::result_out_of_range) {  // too large, or too small to be told from 0
    value = static_cast<T>(std::strtod(std::string(text).c_str(), nullptr));
    return std::abs(value) < 1 ? Parsed::kGood : Parsed::kOutOfRange;
  }
  return std::isfinite(value) ? Parsed::kGood : Parsed::kNotFinite;
}

std::string fault_of(Parsed parsed, std::string_view value) {
  switch (parsed) {
    case Parsed::kOutOfRange:
      return shown(value) + " is out of a float's range";
    case Parsed::kNotFinite:
      return shown(value) + " is not a finite number";
    default:
      return shown(value) + " is not a number";
  }
}

}  // namespace

std::string shown(std::string_view value) {
  constexpr size_t kLongest = 40;
  std::string text = "\"";
  for (const char c : value.substr(0, kLongest)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text + (value.size() > kLongest ? "...\"" : "\"");
}

TableRows::TableRows(std::string path, const DataConfig& config, const std::vector<Column>& columns,
                     DataReport& report, bool probabilities)
    : path_(std::move(path)),
      columns_(columns),
      cells_(columns.size()),
      missing_(config.missing),
      keep_lines_(config.outliers == Outliers::kDrop),
      probabilities_(probabilities),
      bad_(config.bad == BadRecord::kSkip, report) {
  // Each column gets the next place among those of its kind. A category's values are looked up
  // by name.
  for (size_t k = 0; k < columns_.size(); ++k) {
    const Column& column = columns_[k];
    int64_t none = 0;
    int64_t& count = column.role == As::kNumber   ? table_.number_columns
                     : column.role == As::kTarget ? table_.target_columns
                     : column.role == As::kCategory || column.role == As::kOneHot
                         ? table_.id_columns
                         : none;
    cells_[k].place = static_cast<size_t>(count++);
    for (size_t i = 0; i < column.values.size(); ++i) {
      cells_[k].by_name.emplace(column.values[i], static_cast<int32_t>(i));
    }
  }
  numbers_.resize(static_cast<size_t>(table_.number_columns));
  targets_.resize(static_cast<size_t>(table_.target_columns));
  ids_.resize(static_cast<size_t>(table_.id_columns));
  table_.columns = columns;
}

// The beginning of every message about a value: file, line, place and name of the column.
std::string TableRows::where(size_t k) const {
  const std::string place = cells_[k].in_file > 0 ? fmt::format(":{}", cells_[k].in_file) : "";
  return fmt::format("{}:{}{} ({}): ", path_, line_, place, columns_[k].name);
}

bool TableRows::bad_value(size_t k, const std::string& what) {
  bad_.add(where(k) + what);
  return false;
}

void TableRows::malformed(const std::string& place, const std::string& what) {
  bad_.add(fmt::format("{}:{}: {}", path_, place, what));
}

// A finite number of a float's range.
bool TableRows::number(size_t k, std::string_view value, float& into) {
  if (const Parsed parsed = parse_number(value, into); parsed != Parsed::kGood) {
    return bad_value(k, fault_of(parsed, value));
  }
  into += 0.0f;  // -0 becomes 0, so that equal values have equal bits
  return true;
}

// The id of a category: its hash, the place of its name, or a whole number.
bool TableRows::id(size_t k, std::string_view value, int32_t& into) {
  const Column& column = columns_[k];

  // A hash needs no list of values; two values may share an id.
  if (column.hashed) {
    into = static_cast<int32_t>(hash64(value) % static_cast<uint64_t>(column.size));
    return true;
  }

  // A named value's id is its place among the names.
  if (!column.values.empty()) {
    const auto found = cells_[k].by_name.find(value);
    if (found != cells_[k].by_name.end()) {
      into = found->second;
      return true;
    }

    // The value is none of the named ones: offer the nearest, or all if there are few.
    const std::string near = nearest(value, column.values);
    constexpr size_t kListed = 8;
    return bad_value(
        k, near.empty() && column.values.size() <= kListed
               ? fmt::format("{} is none of {}", shown(value), fmt::join(column.values, ", "))
               : fmt::format("{} is none of its {} values{}", shown(value), column.values.size(),
                             did_you_mean(near.empty() ? "" : shown(near))));
  }
  double whole = 0;  // "3.0" is what tools write for 3 where a column once had missing values

  // Else the value is the id itself.
  const bool good = parse_number(value, whole) == Parsed::kGood && whole == std::floor(whole) &&
                    whole >= 0 && whole < static_cast<double>(column.size);
  if (!good)
    return bad_value(k,
                     fmt::format("{} is not a whole number below {}", shown(value), column.size));
  into = static_cast<int32_t>(whole);
  return true;
}

bool TableRows::text(size_t k, std::string_view value) {
  value = trim(value);
  if (value.empty()) return missing(k);

  // Every kind of column goes to its own array of the row being filled.
  const Column& column = columns_[k];
  const size_t place = cells_[k].place;
  switch (column.role) {
    case As::kNumber: {
      float& into = numbers_[place];
      if (!number(k, value, into)) return false;
      if (!column.log) return true;
      if (into <= -1) return bad_value(k, fmt::format("{} has no log(1 + x)", shown(value)));
      into = static_cast<float>(portable::log1p(into));
      return true;
    }
    case As::kCategory:
    case As::kOneHot:
      return id(k, value, ids_[place]);
    case As::kWeight:
      // a weight of 0 is a record that is never drawn
      if (!number(k, value, weight_)) return false;
      return weight_ >= 0 || bad_value(k, fmt::format("the weight {} is below 0", shown(value)));
    case As::kTarget: {
      if (column.size == 0) {
        float& into = targets_[place];
        if (!number(k, value, into)) return false;
        return !probabilities_ || (into >= 0 && into <= 1) ||
               bad_value(k, shown(value) + " is not between 0 and 1");
      }

      // a class; it is stored as a number like all targets
      int32_t class_id = 0;
      if (!id(k, value, class_id)) return false;
      targets_[place] = static_cast<float>(class_id);
      return true;
    }
    case As::kText:
      break;
  }
  TUTTI_CHECK(false, "a text column in a table");
  return false;
}

// A missing value drops the record, is replaced, or is a fault, by data.missing. Targets, weights
// and named categories cannot be replaced.
bool TableRows::missing(size_t k, const std::string& hint) {
  if (missing_ == MissingValue::kDrop) {
    bad_.leave_out(where(k) + "the value is missing" + hint);
    return false;
  }
  const Column& column = columns_[k];
  const size_t place = cells_[k].place;
  if (missing_ != MissingValue::kFail) {
    if (column.role == As::kNumber) {
      numbers_[place] = missing_ == MissingValue::kZero ? 0 : kMissing;
      return true;
    }
    if (column.role == As::kOneHot) {
      ids_[place] = -1;
      return true;
    }
    if (column.hashed) return id(k, "", ids_[place]);
  }
  return bad_value(k, "the value is missing" + hint);
}

// Only a complete record reaches the table, so a bad one leaves no trace.
void TableRows::end() {
  table_.records += 1;
  table_.numbers.insert(table_.numbers.end(), numbers_.begin(), numbers_.end());
  table_.ids.insert(table_.ids.end(), ids_.begin(), ids_.end());
  table_.targets.insert(table_.targets.end(), targets_.begin(), targets_.end());
  for (const Column& column : columns_) {
    if (column.role == As::kWeight) table_.weights.push_back(weight_);
  }
  if (keep_lines_) table_.lines.push_back(line_);
}

}  // namespace tutti
