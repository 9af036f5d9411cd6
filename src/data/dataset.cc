// The split, evaluation's padded micro-batches and the bigram model: all on top of whatever the source is.
#include "data/dataset.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/sources.h"
#include "grid/order.h"

namespace tutti {
namespace {

constexpr int64_t kGeneratedHeldOut = 4096;
constexpr int64_t kBigramRecords = int64_t{1} << 18;

/// Some records of another dataset, by index.
class Picked final : public Dataset {
 public:
  Picked(std::shared_ptr<const Dataset> source, std::vector<int64_t> records)
      : source_(std::move(source)), records_(std::move(records)) {}
  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    source_->read(records_[static_cast<size_t>(record)], tensors, row);
  }

 private:
  std::shared_ptr<const Dataset> source_;
  std::vector<int64_t> records_;
};

/// A range of records of another dataset.
class Ranged final : public Dataset {
 public:
  Ranged(std::shared_ptr<const Dataset> source, int64_t first, int64_t size)
      : source_(std::move(source)), first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    source_->read(first_ + record, tensors, row);
  }

 private:
  std::shared_ptr<const Dataset> source_;
  int64_t first_, size_;
};

Split split_generated(const std::shared_ptr<const Dataset>& source, double fraction) {
  Split split;
  split.train = std::make_shared<Ranged>(source, 0, kGenerated);
  split.held_out = std::make_shared<Ranged>(source, kGenerated, fraction > 0 ? kGeneratedHeldOut : 0);
  return split;
}

Split split_by_key(const std::shared_ptr<const Dataset>& source, uint64_t seed, double fraction,
                   const std::string& path) {
  std::vector<int64_t> train, evaluation;
  for (int64_t record = 0; record < source->size(); ++record) {
    (held_out(seed, static_cast<uint64_t>(record), fraction) ? evaluation : train).push_back(record);
  }
  if (train.empty() || (evaluation.empty() && fraction > 0)) {
    throw Error(fmt::format("{}: data.held_out = {} of {} records leaves none for {}", path, fraction, source->size(),
                            train.empty() ? "training" : "evaluation"));
  }
  Split split;
  split.train = std::make_shared<Picked>(source, std::move(train));
  split.held_out = std::make_shared<Picked>(source, std::move(evaluation));
  return split;
}

/// Calls visit(token, target) for every place of the first `records` records.
template <typename Visit>
void for_each_pair(const Dataset& data, int64_t records, int64_t context, Visit visit) {
  const std::vector<at::Tensor> row = {at::empty({1, context}, at::kLong), at::empty({1, context}, at::kLong)};
  const auto* tokens = row[0].const_data_ptr<int64_t>();
  const auto* targets = row[1].const_data_ptr<int64_t>();
  for (int64_t record = 0; record < records; ++record) {
    data.read(record, row, 0);
    for (int64_t i = 0; i < context; ++i) {
      if ((tokens[i] | targets[i]) >> 8 != 0) throw Error("a bigram model of bytes met a value above 255");
      visit(static_cast<size_t>(tokens[i]), static_cast<size_t>(targets[i]));
    }
  }
}

}  // namespace

uint64_t Dataset::feature(int64_t, const std::string& column) const {
  throw Error(fmt::format("the data has no column {}", column));
}

Split open_data(const Job& job, const DataGroup&) {
  const DataConfig& data = job.data;
  const uint64_t seed = job.train.seed;
  if (data.kind == "walk") {
    return split_generated(make_walk(seed, job.model.context, job.model.vocab), data.held_out);
  }
  if (data.kind == "points") {
    return split_generated(make_points(seed, job.model.inputs, job.model.classes), data.held_out);
  }
  if (data.kind != "text") {
    throw Error(fmt::format("data.kind = \"{}\": known are text, walk and points", data.kind));
  }
  const std::string path = resolve_text_path(data.path);
  return split_by_key(open_text(path, job.model.context, job.model.vocab), seed, data.held_out, path);
}

std::vector<at::Tensor> allocate(const std::vector<Border>& borders) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(borders.size());
  for (const Border& border : borders) tensors.push_back(at::empty(border.dims, border.type));
  return tensors;
}

void read_eval(const Dataset& data, const std::vector<Border>& borders, int64_t first, int64_t records,
               std::vector<at::Tensor>& tensors) {
  TUTTI_CHECK(records <= data.size(), "an evaluation over {} of {} records", records, data.size());
  if (tensors.empty()) tensors = allocate(borders);
  const int64_t rows = borders.front().dims.front();
  for (int64_t row = 0; row < rows; ++row) {
    if (first + row < records) {
      data.read(first + row, tensors, row);
      continue;
    }
    for (size_t k = 0; k < borders.size(); ++k) {
      // All bits set is -1 in every integer type; all bits clear is zero in every type.
      const size_t bytes = tensors[k].nbytes() / static_cast<size_t>(rows);
      auto* begin = static_cast<std::byte*>(tensors[k].mutable_data_ptr()) + static_cast<size_t>(row) * bytes;
      std::memset(begin, borders[k].name == "targets" ? 0xff : 0, bytes);
    }
  }
}

double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context) {
  if (train.size() == 0 || held_out.size() == 0) throw Error("a bigram model needs training and held-out records");
  constexpr size_t kBytes = 256;
  std::vector<double> pairs(kBytes * kBytes, 1), tokens(kBytes, kBytes);
  for_each_pair(train, std::min(train.size(), kBigramRecords), context, [&](size_t token, size_t target) {
    pairs[token * kBytes + target] += 1;
    tokens[token] += 1;
  });
  std::vector<double> loss(kBytes * kBytes);
  for (size_t i = 0; i < loss.size(); ++i) loss[i] = -std::log(pairs[i] / tokens[i / kBytes]);
  double sum = 0;
  for_each_pair(held_out, held_out.size(), context,
                [&](size_t token, size_t target) { sum += loss[token * kBytes + target]; });
  return sum / (static_cast<double>(held_out.size()) * static_cast<double>(context));
}

}  // namespace tutti
