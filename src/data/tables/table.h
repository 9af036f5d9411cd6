// Tables: CSV, TSV and JSONL files that are parsed once into numbers and ids, kept in memory record
// by record, and cleaned and scaled by statistics of the training records.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/check/table_columns.h"
#include "data/core/dataset.h"

namespace tutti {

/// What was read of a file, with columns in the order of data.columns.
struct Table {
  std::vector<Column> columns;
  int64_t records = 0;
  int64_t number_columns = 0, id_columns = 0, target_columns = 0;
  std::vector<float> numbers;  ///< [records, number columns]; NaN until fill_and_scale: missing
  /// [records, category and one-hot columns]; -1 is a one-hot whose value is missing
  std::vector<int32_t> ids;
  std::vector<float> targets;  ///< [records, targets]; a class as its whole number
  std::vector<float> weights;  ///< [records], or empty without such a column
  /// [records], the line in which a record begins; empty unless data.outliers = "drop"
  std::vector<int64_t> lines;
};

/// Parses the text of a CSV or JSONL file; `path` names it in faults. A record that cannot be used
/// is named as
///   file:line:column (name): what  for a value; JSON has no place of a column, so there it is
///                                  file:line (name)
///   file:line:character: what      for a line that is not CSV or not JSON
/// and ends the parse with an Error or, with data.bad = "skip", is counted in the report. A record
/// that data.missing = "drop" drops is counted, too. Faults of the whole file throw Error whatever
/// data.bad says: a column that does not exist, two columns with one name, a header that is not
/// CSV. `probabilities` says that targets that are numbers must be in [0, 1].
Table parse_csv(std::string_view bytes, const std::string& path, const DataConfig& config,
                const std::vector<Column>& columns, DataReport& report, bool probabilities = false);
Table parse_jsonl(std::string_view bytes, const std::string& path, const DataConfig& config,
                  const std::vector<Column>& columns, DataReport& report,
                  bool probabilities = false);

/// The text of one column of a JSONL file, with records joined by "\n": for models of text.
std::string read_jsonl_text(const std::string& path, const std::string& column,
                            const DataConfig& config, DataReport& report);

/// Statistics of one number column over the records in which it is not missing; after log(1 + x) if
/// the column says so.
struct ColumnStatistics {
  int64_t count = 0;
  double mean = 0, deviation = 0;  ///< deviation: root of the mean square distance from the mean
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
};
/// The statistics of every number column. Collective: every rank sums a contiguous share of
/// `records`. The sums are exact, so the bits are the same for every size of the group.
std::vector<ColumnStatistics> statistics_of(const Table& table, std::span<const int64_t> records,
                                            const DataGroup& group);

/// A record with a number further than data.outlier_limit deviations from the mean.
struct Outlier {
  int64_t record = 0;
  std::string what;
};
/// Clips outliers at the limit (data.outliers = "clip"), or returns their records in order with
/// what is wrong ("drop"). With "keep" nothing happens.
std::vector<Outlier> treat_outliers(Table& table, const std::vector<ColumnStatistics>& statistics,
                                    const DataConfig& config, const std::string& path);
/// Fills missing numbers with the mean, then scales each column as it says. A column without spread
/// becomes zeros.
void fill_and_scale(Table& table, const std::vector<ColumnStatistics>& statistics);

/// The records of a cleaned table. With `wide`, ids of categories are a tensor of their own.
std::shared_ptr<const Dataset> make_table(std::shared_ptr<const Table> table, bool wide);

/// How a format of tables is parsed.
using ParseTable = Table (*)(std::string_view bytes, const std::string& path,
                             const DataConfig& config, const std::vector<Column>& columns,
                             DataReport& report, bool probabilities);
/// Reads data.path (plain or gzip) and data.test by `parse`, splits, cleans and scales. Collective
/// over the group. Throws ConfigError for columns that do not fit the model or the loss.
Split open_table(const Job& job, const DataGroup& group, ParseTable parse);
Split open_csv(const Job& job, const DataGroup& group);
Split open_jsonl(const Job& job, const DataGroup& group);

}  // namespace tutti
