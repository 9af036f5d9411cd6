// CSV by RFC 4180. The reader goes over the bytes once and hands out views of them; only values
// with doubled quotes are copied.
#include "data/tables/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "config/nearest.h"
#include "config/reserved_words.h"
#include "data/tables/table_rows.h"

namespace tutti {

std::string_view CsvField::value(std::string& scratch) const {
  if (!escaped) return raw;
  scratch.clear();
  for (size_t i = 0; i < raw.size(); ++i) {
    scratch += raw[i];
    if (raw[i] == '"') ++i;  // inside quotes they come in pairs
  }
  return scratch;
}

CsvReader::CsvReader(std::string_view bytes, char delimiter)
    : bytes_(bytes), delimiter_(delimiter) {
  // Some programs write a byte order mark, which is no part of the first name.
  if (bytes_.starts_with("\xef\xbb\xbf")) bytes_.remove_prefix(3);
  for (const char c : {delimiter, '\n', '"'}) special_[static_cast<unsigned char>(c)] = true;
}

size_t CsvReader::line_end(size_t at) const {
  if (at < bytes_.size() && bytes_[at] == '\n') return 1;
  const std::string_view two = bytes_.substr(at, 2);
  // The last line may end in the middle of its line end.
  return two == "\r\n" ? 2 : two == "\r" ? 1 : 0;
}

CsvReader::Next CsvReader::bad(size_t at, std::string what) {
  // A quoted value may have line ends, so the place of the fault is counted from the
  // record's begin.
  const std::string_view before = bytes_.substr(begin_, at - begin_);
  const int64_t lines = std::count(before.begin(), before.end(), '\n');
  const size_t last = before.rfind('\n');
  const size_t place =
      (last == std::string_view::npos ? before.size() : before.size() - last - 1) + 1;
  fault_place_ = fmt::format("{}:{}", line_ + lines, place);
  fault_ = std::move(what);

  // An open quote could swallow the rest of the file, so reading goes on at the next line.
  const size_t newline = bytes_.find('\n', begin_);
  at_ = newline == std::string_view::npos ? bytes_.size() : newline + 1;
  next_line_ = line_ + 1;
  return Next::kBad;
}

/// Reads a field whose opening quote is at `at`, and sets `at` to the place after its closing
/// quote. Returns false if the quote is not closed.
bool CsvReader::quoted(size_t& at) {
  CsvField field;
  const size_t first = at + 1;
  for (size_t from = first;;) {
    const size_t quote = bytes_.find('"', from);
    if (quote == std::string_view::npos) return false;
    if (quote + 1 < bytes_.size() && bytes_[quote + 1] == '"') {
      field.escaped = true;
      from = quote + 2;
      continue;
    }
    field.raw = bytes_.substr(first, quote - first);
    next_line_ += std::count(field.raw.begin(), field.raw.end(), '\n');
    fields_.push_back(field);
    at = quote + 1;
    return true;
  }
}

CsvReader::Next CsvReader::next() {
  // Empty lines are no records.
  for (size_t length = 0; (length = line_end(at_)) > 0; at_ += length) ++next_line_;
  fields_.clear();
  line_ = next_line_;
  if (at_ >= bytes_.size()) return Next::kEnd;
  begin_ = at_;
  const size_t end = bytes_.size();
  for (size_t at = at_;; ++at) {  // `at` is where a field begins
    if (at < end && bytes_[at] == '"') {
      const size_t opening = at;
      if (!quoted(at)) return bad(opening, "the quote is not closed");
      if (at < end && bytes_[at] != delimiter_ && line_end(at) == 0)
        return bad(at, "text after a closing quote");
    } else {
      // A plain field ends at a delimiter or a line end. A quote inside it is a fault, since a
      // writer that quotes would have quoted all of it.
      const size_t first = at;
      while (at < end && !special_[static_cast<unsigned char>(bytes_[at])]) ++at;
      if (at < end && bytes_[at] == '"')
        return bad(at, "a quote inside a value that does not begin with one");
      const bool carriage_return =
          (at == end || bytes_[at] == '\n') && at > first && bytes_[at - 1] == '\r';
      fields_.push_back({bytes_.substr(first, at - first - (carriage_return ? 1 : 0))});
    }

    // After a field comes a delimiter and the next field, or the record's end.
    if (at < end && bytes_[at] == delimiter_) continue;
    at_ = at + line_end(at);
    next_line_ += 1;
    return Next::kRecord;
  }
}

namespace {

// The delimiter, by data.delimiter or the file's name.
char delimiter_of(const DataConfig& config, std::string_view path) {
  if (delimiter_by_name(config)) {
    if (path.ends_with(".gz")) path.remove_suffix(3);
    return path.ends_with(".tsv") || path.ends_with(".tab") ? '\t' : ',';
  }
  if (config.delimiter.size() != 1 || std::strchr("\"\r\n", config.delimiter[0]) != nullptr) {
    throw ConfigError({fmt::format("data.delimiter = {}: one character, not a quote or a line end",
                                   shown(config.delimiter))});
  }
  return config.delimiter[0];
}

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

// The names of the columns. Two equal names would make data.columns ambiguous.
std::vector<std::string> read_header(CsvReader& reader, const std::string& path) {
  const auto next = reader.next();
  if (next == CsvReader::Next::kEnd) throw Error(fmt::format("{}: the file has no line", path));
  if (next == CsvReader::Next::kBad) {
    throw Error(fmt::format("{}:{}: {}, in the names of the columns", path, reader.fault_place(),
                            reader.fault()));
  }
  std::vector<std::string> names;
  std::string scratch;
  for (const CsvField& field : reader.fields()) {
    names.push_back(trimmed(field.value(scratch)));
    const auto first = std::find(names.begin(), names.end() - 1, names.back());
    if (names.back().empty() || first == names.end() - 1) continue;
    throw Error(fmt::format("{}:{}:{}: the name {} is already that of column {}", path,
                            reader.line(), names.size(), shown(names.back()),
                            first - names.begin() + 1));
  }
  return names;
}

/// The place of each column of data.columns among the file's columns.
std::vector<size_t> places_of(const std::vector<Column>& columns,
                              const std::vector<std::string>& names, const std::string& path) {
  std::vector<size_t> places;
  for (const Column& column : columns) {
    const auto found = std::find(names.begin(), names.end(), column.name);
    if (found == names.end()) {
      const std::string near = nearest(column.name, names);
      constexpr size_t kListed = 20;
      throw Error(fmt::format("{}: there is no column {}; {}", path, shown(column.name),
                              !near.empty() ? "did you mean " + shown(near) + "?"
                              : names.size() <= kListed
                                  ? fmt::format("they are {}", fmt::join(names, ", "))
                                  : fmt::format("it has {} others", names.size())));
    }
    places.push_back(static_cast<size_t>(found - names.begin()));
  }
  return places;
}

/// Names for columns of a file without header: "1", "2", ...
std::vector<std::string> numbered(size_t count) {
  std::vector<std::string> names(count);
  for (size_t i = 0; i < count; ++i) names[i] = std::to_string(i + 1);
  return names;
}

/// Hands the wanted fields of a record on; false ends the record.
bool put_fields(TableRows& rows, const std::vector<CsvField>& fields,
                const std::vector<size_t>& places, std::string& scratch) {
  for (size_t k = 0; k < places.size(); ++k) {
    if (!rows.text(k, fields[places[k]].value(scratch))) return false;
  }
  return true;
}

}  // namespace

Table parse_csv(std::string_view bytes, const std::string& path, const DataConfig& config,
                const std::vector<Column>& columns, DataReport& report, bool probabilities) {
  CsvReader reader(bytes, delimiter_of(config, path));
  TableRows rows(path, config, columns, report, probabilities);
  std::vector<std::string> names;
  std::vector<size_t> places;

  // The places of the wanted columns follow from the names, which the header gives or which
  // are numbers.
  const auto settle = [&] {
    places = places_of(columns, names, path);
    for (size_t k = 0; k < places.size(); ++k)
      rows.set_place(k, static_cast<int64_t>(places[k]) + 1);
  };
  if (config.header) {
    names = read_header(reader, path);
    settle();
  }
  std::string scratch;
  for (;;) {
    const auto next = reader.next();
    if (next == CsvReader::Next::kEnd) break;
    if (next == CsvReader::Next::kBad) {
      rows.malformed(reader.fault_place(), reader.fault());
      continue;
    }
    const std::vector<CsvField>& fields = reader.fields();
    if (names.empty()) {  // without a header the first good line says how many columns there are
      names = numbered(fields.size());
      settle();
    }

    // A record with another number of columns than the names is malformed, even if the wanted ones
    // are there.
    if (fields.size() != names.size()) {
      rows.malformed(fmt::format("{}:{}", reader.line(), std::min(fields.size(), names.size()) + 1),
                     fmt::format("{} columns, not {}", fields.size(), names.size()));
      continue;
    }
    rows.begin(reader.line());
    if (put_fields(rows, fields, places, scratch)) rows.end();
  }
  return rows.take();
}

}  // namespace tutti
