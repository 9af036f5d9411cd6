// Tables: CSV, TSV and JSONL files, parsed once into numbers and ids that lie in memory a row a
// record; cleaned and scaled by statistics of the training records.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/table_columns.h"
#include "data/core/dataset.h"

namespace tutti {

/// What has been read of a file, columns in the order of data.columns.
struct Table {
  std::vector<Column> columns;
  int64_t records = 0;
  int64_t number_columns = 0, id_columns = 0, target_columns = 0;
  std::vector<float> numbers;  ///< [records, number columns]; NaN: missing, until fill_and_scale
  /// [records, category and one-hot columns]; -1: a one-hot whose value is missing
  std::vector<int32_t> ids;
  std::vector<float> targets;  ///< [records, targets]; a class as its whole number
  std::vector<float> weights;  ///< [records], or empty: no such column
  /// [records], where the record begins; empty unless data.outliers = "drop"
  std::vector<int64_t> lines;
};

/// Parses the text of a CSV or JSONL file; `path` names it in faults. A record that cannot be used
/// is named as
///   file:line:column (name): what      a value; JSON has no place of a column, so there it is
///                                      file:line (name)
///   file:line:character: what          a line that is not CSV or not JSON
/// and ends the parse with an Error or, where data.bad = "skip", is counted in the report. A record
/// that data.missing = "drop" drops is counted too. Throws Error for faults of the whole file
/// whatever data.bad says: a column that there is not, two columns of one name, a header that is no
/// CSV. `probabilities`: targets that are numbers lie in [0, 1].
Table parse_csv(std::string_view bytes, const std::string& path, const DataConfig& config,
                const std::vector<Column>& columns, DataReport& report, bool probabilities = false);
Table parse_jsonl(std::string_view bytes, const std::string& path, const DataConfig& config,
                  const std::vector<Column>& columns, DataReport& report,
                  bool probabilities = false);

/// The text of one column of a JSONL file, records joined by "\n": for models of text.
std::string read_jsonl_text(const std::string& path, const std::string& column,
                            const DataConfig& config, DataReport& report);

/// Of one number column, over records where it is not missing; after log(1 + x) where the column
/// says so.
struct ColumnStatistics {
  int64_t count = 0;
  double mean = 0, deviation = 0;  ///< deviation: root of the mean square distance from the mean
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
};
/// Collective: every rank sums a contiguous share of `records`, and the sums are exact, so the bits
/// are the same for every size of the group.
std::vector<ColumnStatistics> statistics_of(const Table& table, std::span<const int64_t> records,
                                            const DataGroup& group);

/// Numbers further than data.outlier_limit deviations from the mean are clipped there
/// (data.outliers = "clip"), or their records are returned in order, with what is wrong ("drop").
/// "keep": nothing happens.
struct Outlier {
  int64_t record = 0;
  std::string what;
};
std::vector<Outlier> treat_outliers(Table& table, const std::vector<ColumnStatistics>& statistics,
                                    const DataConfig& config, const std::string& path);
/// Missing numbers become the mean; then each column is scaled as it says. A column without spread
/// becomes zeros.
void fill_and_scale(Table& table, const std::vector<ColumnStatistics>& statistics);

/// Records of a cleaned table. `wide`: ids of categories are a tensor of their own.
std::shared_ptr<const Dataset> make_table(std::shared_ptr<const Table> table, bool wide);

/// data.kind = "csv" or "jsonl": reads data.path (plain or gzip) and data.test, splits, cleans and
/// scales. Collective over the group. Throws ConfigError for columns that do not fit the model or
/// the loss.
Split open_table(const Job& job, const DataGroup& group);

}  // namespace tutti
