// CSV as RFC 4180 says it, record by record, over bytes in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// One value of a record, as it stands in the file, without its outer quotes.
struct CsvField {
  std::string_view raw;
  bool escaped = false;  ///< has doubled quotes in it
  /// The value; `scratch` holds it where it differs from `raw`.
  std::string_view value(std::string& scratch) const;
};

/// Lines end with LF or CRLF; empty lines and a UTF-8 byte order mark are passed over; a quoted
/// value may have line ends, delimiters and doubled quotes in it.
class CsvReader {
 public:
  CsvReader(std::string_view bytes, char delimiter);

  enum class Next { kRecord, kBad, kEnd };
  /// After kBad the reader goes on at the line behind the one the record begins in.
  Next next();
  const std::vector<CsvField>& fields() const { return fields_; }
  /// Where the record begins, from 1.
  int64_t line() const { return line_; }
  /// After kBad: "line:character" of what is wrong, and what it is.
  const std::string& fault_place() const { return fault_place_; }
  const std::string& fault() const { return fault_; }

 private:
  Next bad(size_t at, std::string what);
  bool quoted(size_t& at);
  /// 0: there is none at `at`, else its length; the end of the bytes has none
  size_t line_end(size_t at) const;

  std::string_view bytes_;
  char delimiter_;
  bool special_[256] = {};  ///< what ends a run of plain characters
  size_t at_ = 0, begin_ = 0;
  int64_t line_ = 0, next_line_ = 1;
  std::vector<CsvField> fields_;
  std::string fault_place_, fault_;
};

}  // namespace tutti
