// Statistics of the training records, and what is done with them: outliers, missing
// numbers, scales.
#include <cmath>

#include "base/exact_sum.h"
#include "data/core/merged.h"
#include "data/tables/table.h"

namespace tutti {
namespace {

using As = Column::Role;
using Scale = ValueScale;

/// What one rank knows of one column. Sums are exact, so joining them has no order.
struct ColumnShare {
  int64_t count = 0;
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
  ExactSum sum;
  void merge(const ColumnShare& other) {
    count += other.count;
    low = std::min(low, other.low);
    high = std::max(high, other.high);
    sum.merge(other.sum);
  }
};

/// Calls visit(column, value) for the numbers in this rank's share of `records`, except
/// missing ones.
template <typename Visit>
void for_each_number(const Table& table, std::span<const int64_t> records, const DataGroup& group,
                     Visit visit) {
  const auto n = static_cast<int64_t>(records.size());
  const int64_t first = n * group.rank / group.size, end = n * (group.rank + 1) / group.size;
  for (int64_t i = first; i < end; ++i) {
    const float* row =
        table.numbers.data() + records[static_cast<size_t>(i)] * table.number_columns;
    for (int64_t k = 0; k < table.number_columns; ++k) {
      if (!std::isnan(row[k])) visit(static_cast<size_t>(k), static_cast<double>(row[k]));
    }
  }
}

/// The columns whose numbers are in Table::numbers, in the same order.
std::vector<const Column*> number_columns(const Table& table) {
  std::vector<const Column*> columns;
  for (const Column& column : table.columns) {
    if (column.role == As::kNumber) columns.push_back(&column);
  }
  return columns;
}

}  // namespace

std::vector<ColumnStatistics> statistics_of(const Table& table, std::span<const int64_t> records,
                                            const DataGroup& group) {
  // First pass: number, range and mean.
  const auto columns = static_cast<size_t>(table.number_columns);
  std::vector<ColumnShare> shares(columns);
  for_each_number(table, records, group, [&](size_t k, double value) {
    ColumnShare& share = shares[k];
    share.count += 1;
    share.low = std::min(share.low, value);
    share.high = std::max(share.high, value);
    share.sum.add(value);
  });
  shares = merged(std::move(shares), group);
  std::vector<ColumnStatistics> statistics(columns);
  for (size_t k = 0; k < columns; ++k) {
    const ColumnShare& share = shares[k];
    statistics[k] = {.count = share.count, .low = share.low, .high = share.high};
    if (share.count > 0) statistics[k].mean = share.sum.value() / static_cast<double>(share.count);
  }
  // Second pass: squares of distances from the mean. Squares of the values themselves would cancel
  // where the mean is large compared with the deviation (years, times).
  std::vector<ColumnShare> squares(columns);
  for_each_number(table, records, group, [&](size_t k, double value) {
    const double distance = value - statistics[k].mean;
    squares[k].sum.add(distance * distance);
  });
  squares = merged(std::move(squares), group);
  for (size_t k = 0; k < columns; ++k) {
    if (statistics[k].count == 0) continue;
    statistics[k].deviation =
        std::sqrt(squares[k].sum.value() / static_cast<double>(statistics[k].count));
  }
  return statistics;
}

std::vector<Outlier> treat_outliers(Table& table, const std::vector<ColumnStatistics>& statistics,
                                    const DataConfig& config, const std::string& path) {
  std::vector<Outlier> found;
  if (config.outliers == Outliers::kKeep) return found;

  // All records are treated, held-out ones too, by the limits of the training records.
  const bool drop = config.outliers == Outliers::kDrop;
  const std::vector<const Column*> columns = number_columns(table);
  for (int64_t record = 0; record < table.records; ++record) {
    float* row = table.numbers.data() + record * table.number_columns;
    for (size_t k = 0; k < columns.size(); ++k) {
      const double width = config.outlier_limit * statistics[k].deviation,
                   mean = statistics[k].mean;
      if (!(std::abs(row[k] - mean) > width) || statistics[k].count == 0) continue;  // NaN: missing
      if (drop) {
        found.push_back(
            {record, fmt::format("{}:{} ({}): {}{} is more than {} deviations from the mean {:.6g}",
                                 path, table.lines[static_cast<size_t>(record)], columns[k]->name,
                                 columns[k]->log ? "log(1 + x) = " : "", row[k],
                                 config.outlier_limit, mean)});
        break;
      }

      // "clip": the nearest number within the limits.
      row[k] = static_cast<float>(row[k] > mean ? mean + width : mean - width);
    }
  }
  return found;
}

void fill_and_scale(Table& table, const std::vector<ColumnStatistics>& statistics) {
  const std::vector<const Column*> columns = number_columns(table);
  for (int64_t record = 0; record < table.records; ++record) {
    float* row = table.numbers.data() + record * table.number_columns;
    for (size_t k = 0; k < columns.size(); ++k) {
      const ColumnStatistics& s = statistics[k];

      // A missing number becomes the mean, which is 0 when standardised.
      const double value = std::isnan(row[k]) ? s.mean : row[k];
      const bool min_max = columns[k]->scale == Scale::kMinMax;
      const double from = min_max ? s.low : s.mean, width = min_max ? s.high - s.low : s.deviation;
      if (columns[k]->scale == Scale::kNone) {
        row[k] = static_cast<float>(value);
      } else {
        row[k] = width > 0 ? static_cast<float>((value - from) / width) : 0;
      }
    }
  }
}

}  // namespace tutti
