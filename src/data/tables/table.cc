// Records of a table; and the way from a job to its table: read, split, clean, scale.
#include "data/tables/table.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "config/job_parts.h"
#include "config/nearest.h"
#include "data/core/sources.h"
#include "data/tables/table_rows.h"
#include "model/core/data_borders.h"

namespace tutti {
namespace {

using As = Column::Role;

// Features are number columns and one-hot columns in the order of data.columns; categories are ids.
class TableRecords final : public Dataset {
 public:
  TableRecords(std::shared_ptr<const Table> table, bool wide)
      : table_(std::move(table)), wide_(wide), features_(sizes_of(table_->columns).numbers) {
    // Numbers and ids are counted separately, as they are stored.
    size_t number = 0, id = 0;
    for (const Column& column : table_->columns) {
      if (column.role == As::kNumber) parts_.push_back({number++, 0, As::kNumber});
      if (column.role == As::kOneHot) parts_.push_back({id, column.size, As::kOneHot});
      if (column.role == As::kCategory) categories_.push_back(id);
      if (column.role == As::kCategory || column.role == As::kOneHot) ++id;
      if (column.role == As::kTarget && column.size > 0) classes_ = true;
    }
  }

  int64_t size() const override { return table_->records; }

  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    if (features_ > 0)
      read_features(record, tensors[0].mutable_data_ptr<float>() + row * features_);
    if (wide_) {
      const auto fields = static_cast<int64_t>(categories_.size());
      int64_t* into = fields > 0 ? tensors[1].mutable_data_ptr<int64_t>() + row * fields : nullptr;
      const int32_t* ids = table_->ids.data() + record * table_->id_columns;
      for (size_t k = 0; k < categories_.size(); ++k) into[k] = ids[categories_[k]];
    }
    read_targets(record, tensors[wide_ ? 2 : 1], row);
  }

  int64_t label(int64_t record) const override {
    return classes_ ? static_cast<int64_t>(table_->targets[static_cast<size_t>(record)]) : -1;
  }

  double weight(int64_t record) const override {
    return table_->weights.empty() ? 1 : table_->weights[static_cast<size_t>(record)];
  }

  uint64_t feature(int64_t record, const std::string& name) const override {
    // Walks over the columns and counts how many of each kind come before the wanted one. A value's
    // bits are enough, since only equality counts.
    int64_t number = 0, id = 0, target = 0;
    const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
    for (const Column& column : table_->columns) {
      const bool here = column.name == name;
      switch (column.role) {
        case As::kNumber:
          if (here)
            return bits(
                table_->numbers[static_cast<size_t>(record * table_->number_columns + number)]);
          ++number;
          break;
        case As::kCategory:
        case As::kOneHot:
          if (here) {
            return static_cast<uint32_t>(
                table_->ids[static_cast<size_t>(record * table_->id_columns + id)]);
          }
          ++id;
          break;
        case As::kTarget:
          if (here)
            return bits(
                table_->targets[static_cast<size_t>(record * table_->target_columns + target)]);
          ++target;
          break;
        case As::kWeight:
          if (here) return bits(table_->weights[static_cast<size_t>(record)]);
          break;
        case As::kText:
          break;
      }
    }

    // There is no such column: offer the nearest name.
    std::vector<std::string> names;
    for (const Column& column : table_->columns) names.push_back(column.name);
    const std::string near = nearest(name, names);
    throw Error(fmt::format("data.columns have no column {}{}", shown(name),
                            did_you_mean(near.empty() ? "" : shown(near))));
  }

 private:
  struct Part {
    size_t place;  ///< in a row of numbers, or of ids
    int64_t size;
    As role;
  };

  void read_features(int64_t record, float* into) const {
    const float* numbers = table_->numbers.data() + record * table_->number_columns;

    // Without one-hot columns the features are stored as they are read.
    if (features_ == table_->number_columns) {
      std::copy_n(numbers, features_, into);
      return;
    }
    const int32_t* ids = table_->ids.data() + record * table_->id_columns;
    for (const Part& part : parts_) {
      if (part.role == As::kNumber) {
        *into++ = numbers[part.place];
        continue;
      }
      std::fill_n(into, part.size, 0.0f);
      if (ids[part.place] >= 0) into[ids[part.place]] = 1;
      into += part.size;
    }
  }

  void read_targets(int64_t record, const at::Tensor& tensor, int64_t row) const {
    const int64_t width = table_->target_columns;
    const float* targets = table_->targets.data() + record * width;
    if (tensor.scalar_type() == at::kLong) {
      // An autoencoder's numbers are no classes, and one of -1 would be taken for padding.
      tensor.mutable_data_ptr<int64_t>()[row] = classes_ ? static_cast<int64_t>(*targets) : 0;
    } else {
      std::copy_n(targets, width, tensor.mutable_data_ptr<float>() + row * width);
    }
  }

  std::shared_ptr<const Table> table_;
  bool wide_;
  int64_t features_;
  std::vector<Part> parts_;         ///< of the features, in order
  std::vector<size_t> categories_;  ///< places of their ids in a row of ids
  bool classes_ = false;
};

/// The faults of columns that the model or loss of this job cannot take.
std::vector<std::string> misfits(const Job& job, const std::vector<Column>& columns) {
  std::vector<std::string> faults;
  const ColumnSizes sizes = sizes_of(columns);
  const std::string& model = job.model.kind;

  // Columns that are missing, or that no model of this kind can read.
  if (columns.empty()) faults.emplace_back("data.columns is empty: name the columns that are read");
  if (sizes.texts > 0)
    faults.push_back(fmt::format("data.columns: model.kind = \"{}\" reads no text", model));
  if (!model_part(job).reads.fields && !sizes.categories.empty()) {
    faults.push_back(fmt::format(
        "data.columns: model.kind = \"{}\" has no embeddings; make categories one-hot", model));
  }
  if (job.data.resample == Resample::kColumn && sizes.weights == 0) {
    faults.emplace_back("data.resample = \"column\" but none of data.columns is a weight");
  }

  // Targets are one class, or as many numbers as the model has outputs.
  if (targets_are_classes(job)) {
    if (model_part(job).reconstructs) return faults;
    if (sizes.classes == 0) {
      faults.emplace_back(
          "data.columns: the loss needs classes: \"name: target first|second\" or target "
          "classes=N");
    } else if (sizes.classes != job.model.classes) {
      faults.push_back(fmt::format("model.classes = {} but the target of data.columns has {}",
                                   job.model.classes, sizes.classes));
    }
    return faults;
  }

  // Targets are numbers. Two named classes do, too: they are 0 and 1.
  if (sizes.targets != job.model.outputs) {
    faults.push_back(fmt::format("model.outputs = {} but data.columns have {} targets",
                                 job.model.outputs, sizes.targets));
  }
  if (sizes.classes > 2) {
    faults.push_back(fmt::format("data.columns: a target of {} classes, but the loss is of numbers",
                                 sizes.classes));
  }
  return faults;
}

/// Reads and parses one file.
std::shared_ptr<Table> read_table(const Job& job, ParseTable parse, const std::string& path,
                                  const std::vector<Column>& columns, DataReport& report) {
  const std::string bytes = read_gz(path);
  auto table = std::make_shared<Table>(
      parse(bytes, path, job.data, columns, report, loss_part(job).yes_or_no));
  if (table->records == 0) {
    throw Error(report.skipped == 0 ? fmt::format("{}: the file has no records", path)
                                    : fmt::format("{}: no record can be used; the first fault: {}",
                                                  path, report.faults.front()));
  }
  return table;
}

/// Returns `records` without the outliers; both are in ascending order.
std::vector<int64_t> without(const std::vector<int64_t>& records,
                             const std::vector<Outlier>& outliers) {
  std::vector<int64_t> dropped, kept;
  for (const Outlier& outlier : outliers) dropped.push_back(outlier.record);
  std::set_difference(records.begin(), records.end(), dropped.begin(), dropped.end(),
                      std::back_inserter(kept));
  if (kept.empty() && !records.empty())
    throw Error("data.outliers = \"drop\" drops every record of a part of the data");
  return kept;
}

/// Counts outliers as records that were left out.
void count(const std::vector<Outlier>& outliers, DataReport& report) {
  BadRecords bad(true, report);
  for (const Outlier& outlier : outliers) bad.leave_out(outlier.what);
}

/// Tells by which statistics columns are scaled. A column without any value has none.
void report_statistics(const Table& table, const std::vector<ColumnStatistics>& statistics,
                       const std::string& path, DataReport& report) {
  size_t k = 0;
  for (const Column& column : table.columns) {
    if (column.role == As::kTarget && column.size > 0) report.classes = column.values;
    if (column.role != As::kNumber) continue;
    const ColumnStatistics& s = statistics[k++];
    if (s.count == 0)
      throw Error(
          fmt::format("{}: no training record has a value in column {}", path, column.name));
    report.statistics.push_back(fmt::format(
        "{}{} mean {:.6g} deviation {:.6g} min {:.6g} max {:.6g} of {} records",
        column.log ? "log of " : "", column.name, s.mean, s.deviation, s.low, s.high, s.count));
  }
}

}  // namespace

std::shared_ptr<const Dataset> make_table(std::shared_ptr<const Table> table, bool wide) {
  return std::make_shared<TableRecords>(std::move(table), wide);
}

Split open_table(const Job& job, const DataGroup& group, ParseTable parse) {
  std::vector<std::string> faults;
  const std::vector<Column> columns = parse_columns(job.data.columns, faults);
  if (faults.empty()) faults = misfits(job, columns);
  if (!faults.empty()) throw ConfigError(std::move(faults));
  const bool wide = model_part(job).reads.fields;

  Split split;
  const std::string path = resolve_path(job.data.path);
  auto table = read_table(job, parse, path, columns, split.report);
  Parts parts = split_records(job, table->records, path);

  // Only training records are looked at: statistics of held-out ones would let a model see them.
  std::vector<ColumnStatistics> statistics = statistics_of(*table, parts.train, group);

  // Limits are those of the data before outliers were treated, for the test data as well; scaling
  // is by the statistics of what is left.
  const std::vector<ColumnStatistics> limits = statistics;
  if (job.data.outliers != Outliers::kKeep) {
    const std::vector<Outlier> outliers = treat_outliers(*table, limits, job.data, path);
    count(outliers, split.report);
    parts = {without(parts.train, outliers), without(parts.held_out, outliers)};
    statistics = statistics_of(*table, parts.train, group);
  }

  // Training and held-out records are scaled in place, in one table.
  report_statistics(*table, statistics, path, split.report);
  fill_and_scale(*table, statistics);
  const std::shared_ptr<const Dataset> records = make_table(table, wide);
  split.train = pick(records, std::move(parts.train));
  split.held_out = pick(records, std::move(parts.held_out));

  if (!job.data.test.empty()) {
    auto test = read_table(job, parse, job.data.test, columns, split.report);
    const std::vector<Outlier> outliers = treat_outliers(*test, limits, job.data, job.data.test);
    count(outliers, split.report);
    fill_and_scale(*test, statistics);
    std::vector<int64_t> all(static_cast<size_t>(test->records));
    std::iota(all.begin(), all.end(), 0);
    split.test = pick(make_table(test, wide), without(all, outliers));
  }
  return split;
}

Split open_csv(const Job& job, const DataGroup& group) { return open_table(job, group, parse_csv); }

Split open_jsonl(const Job& job, const DataGroup& group) {
  return open_table(job, group, parse_jsonl);
}

}  // namespace tutti
