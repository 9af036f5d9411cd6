// Reads CSV as RFC 4180 describes it, record by record, from bytes in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// One value of a record as it is written in the file, without its outer quotes. It refers to the
/// reader's bytes.
struct CsvField {
  std::string_view raw;
  bool escaped = false;  ///< has doubled quotes in it
  /// The value itself; `scratch` holds it if it differs from `raw`.
  std::string_view value(std::string& scratch) const;
};

/// Cuts bytes into records and fields. Lines end with LF or CRLF. Empty lines and a UTF-8 byte
/// order mark are skipped. A quoted value may contain line ends, delimiters and doubled quotes. The
/// bytes must outlive the reader.
class CsvReader {
 public:
  CsvReader(std::string_view bytes, char delimiter);

  enum class Next { kRecord, kBad, kEnd };
  /// Goes to the next record. After kBad the reader goes on at the line after the one in which the
  /// bad record begins.
  Next next();
  const std::vector<CsvField>& fields() const { return fields_; }
  /// The line in which the record begins, from 1.
  int64_t line() const { return line_; }
  /// After kBad: the "line:character" of the fault, and what it is.
  const std::string& fault_place() const { return fault_place_; }
  const std::string& fault() const { return fault_; }

 private:
  Next bad(size_t at, std::string what);
  bool quoted(size_t& at);
  /// the length of the line end at `at`; 0 if there is none, as at the end of the bytes
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
