// Turns the values of a record into a row of a table. Values of every format are checked here.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "data/core/bad_records.h"
#include "data/tables/table.h"

namespace tutti {

/// A value as messages show it: in quotes, short, without control characters.
std::string shown(std::string_view value);

/// Fills a table record by record. A record is begin(), then text() or missing() once for every
/// column, then end(). A call that returns false has reported the record as bad, or dropped it; the
/// next call is then begin().
class TableRows {
 public:
  TableRows(std::string path, const DataConfig& config, const std::vector<Column>& columns,
            DataReport& report, bool probabilities);
  /// Tells the place of column k in the file, from 1, for messages.
  void set_place(size_t k, int64_t place) { cells_[k].in_file = place; }
  const Column& column(size_t k) const { return columns_[k]; }

  void begin(int64_t line) { line_ = line; }
  /// Takes the value of column k; an empty or blank one is missing.
  bool text(size_t k, std::string_view value);
  bool missing(size_t k, const std::string& hint = "");
  /// Reports that the value of column k is bad; `what` says how.
  bool bad_value(size_t k, const std::string& what);
  /// Reports a line that is no record; `place` is "line:character".
  void malformed(const std::string& place, const std::string& what);
  void end();

  Table take() { return std::move(table_); }

 private:
  struct Cell {
    int64_t in_file = 0;  ///< its place in the file, from 1; 0 if the format has none
    size_t place = 0;     ///< among the columns of its kind
    std::unordered_map<std::string_view, int32_t> by_name;
  };
  std::string where(size_t k) const;
  bool number(size_t k, std::string_view value, float& into);
  bool id(size_t k, std::string_view value, int32_t& into);

  std::string path_;
  const std::vector<Column> columns_;
  std::vector<Cell> cells_;
  MissingValue missing_;
  bool keep_lines_, probabilities_;
  BadRecords bad_;
  Table table_;
  std::vector<float> numbers_, targets_;  ///< the row being filled
  std::vector<int32_t> ids_;
  float weight_ = 1;
  int64_t line_ = 0;
};

}  // namespace tutti
