// Arrays as records. Reading is a copy with one multiplication and one addition per value; what
// takes time is the memory's latency, which prefetching hides.
#include "data/images/arrays.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/pages.h"
#include "config/job_parts.h"
#include "config/reserved_words.h"
#include "data/core/bad_records.h"
#include "data/core/sources.h"
#include "grid/grid.h"

namespace tutti {

int64_t Array::row() const {
  int64_t size = 1;
  for (size_t d = 1; d < dims.size(); ++d) size *= dims[d];
  return size;
}

namespace {

/// Copies records of `bytes` bytes each to `to`, one after the other. With every line that is
/// copied, a line of a later record is prefetched; all lines of a record at once would have to wait
/// for each other.
void copy_bytes(const char* values, std::span<const int64_t> records, char* to, size_t bytes) {
  constexpr size_t kAhead = 4, kLine = 64;
  for (size_t i = 0; i < records.size(); ++i, to += bytes) {
    const char* from = values + static_cast<size_t>(records[i]) * bytes;
    const char* next =
        values + static_cast<size_t>(records[std::min(i + kAhead, records.size() - 1)]) * bytes;
    size_t at = 0;
    for (; at + kLine <= bytes; at += kLine) {
      __builtin_prefetch(next + at);
      std::memcpy(to + at, from + at, kLine);
    }
    std::memcpy(to + at, from + at, bytes - at);
  }
}

class Arrays final : public Dataset {
 public:
  Arrays(std::shared_ptr<const Array> values, std::shared_ptr<const Array> labels,
         std::vector<Scaling> scaling)
      : values_(std::move(values)),
        labels_(std::move(labels)),
        scaling_(std::move(scaling)),
        row_(values_->row()) {}

  int64_t size() const override { return values_->records(); }

  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const int64_t records[] = {record};
    read_rows(records, tensors, row);
  }

  void read_rows(std::span<const int64_t> records, std::span<const at::Tensor> tensors,
                 int64_t first_row) const override {
    std::visit([&](const auto& values) { copy(values.data(), records, tensors[0], first_row); },
               values_->values);
    if (tensors.size() > 1) write_targets(records, tensors[1], first_row);
  }

  int64_t label(int64_t record) const override {
    if (!labels_) return -1;
    return std::visit(
        [&](const auto& labels) {
          return static_cast<int64_t>(labels[static_cast<size_t>(record)]);
        },
        labels_->values);
  }

 private:
  template <typename T>
  void copy(const T* values, std::span<const int64_t> records, const at::Tensor& tensor,
            int64_t first_row) const {
    // A tensor of the array's own type gets the bytes as they are; a float tensor gets
    // scaled values.
    const bool raw = tensor.element_size() == sizeof(T) && tensor.scalar_type() != at::kFloat;
    auto* to =
        static_cast<char*>(tensor.mutable_data_ptr()) + first_row * row_ * tensor.element_size();
    if (raw)
      return copy_bytes(reinterpret_cast<const char*>(values), records, to, row_ * sizeof(T));
    constexpr size_t kAhead = 8;  // records that are prefetched
    for (size_t i = 0; i < records.size(); ++i) {
      if (i + kAhead < records.size()) {
        const auto* next = reinterpret_cast<const char*>(values + records[i + kAhead] * row_);
        const int64_t bytes = std::min<int64_t>(row_ * static_cast<int64_t>(sizeof(T)), 2048);
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line);
      }
      scale_row(values + records[i] * row_, reinterpret_cast<float*>(to), row_, scaling_);
      to += row_ * tensor.element_size();
    }
  }

  void write_targets(std::span<const int64_t> records, const at::Tensor& tensor,
                     int64_t first_row) const {
    const int64_t width = tensor.numel() / tensor.size(0);
    for (size_t i = 0; i < records.size(); ++i) {
      const int64_t row = first_row + static_cast<int64_t>(i);
      if (tensor.scalar_type() == at::kLong) {
        // Classes are never negative. An autoencoder's labels may be, and would then be taken
        // for padding.
        tensor.mutable_data_ptr<int64_t>()[row] =
            labels_ ? std::max<int64_t>(label(records[i]), 0) : 0;
        continue;
      }
      float* to = tensor.mutable_data_ptr<float>() + row * width;
      for (int64_t k = 0; k < width; ++k) to[k] = labels_ ? value(records[i] * width + k) : 0;
    }
  }

  float value(int64_t index) const {
    return std::visit(
        [&](const auto& labels) { return static_cast<float>(labels[static_cast<size_t>(index)]); },
        labels_->values);
  }

  std::shared_ptr<const Array> values_, labels_;
  std::vector<Scaling> scaling_;
  int64_t row_;
};

/// Sums per channel. Bytes are counted by value first, which makes one exact addition per value
/// instead of one per pixel.
std::vector<Moments> moments(const std::vector<uint8_t>& values, int64_t plane, int64_t channels,
                             std::span<const int64_t> records) {
  ByteCounts counts(channels);
  for (int64_t record : records) counts.add(values.data() + record * plane * channels, plane);
  return counts.moments();
}

template <typename T>
std::vector<Moments> moments(const std::vector<T>& values, int64_t plane, int64_t channels,
                             std::span<const int64_t> records) {
  std::vector<Moments> all(static_cast<size_t>(channels));
  for (int64_t record : records) {
    const T* at = values.data() + record * plane * channels;
    for (Moments& m : all)
      for (int64_t i = 0; i < plane; ++i) m.add(static_cast<double>(*at++));
  }
  return all;
}

/// The index of the first value from `begin` on that is not finite; -1 if there is none.
int64_t not_finite(const Array& array, int64_t begin) {
  const auto* values = std::get_if<std::vector<float>>(&array.values);
  if (values == nullptr) return -1;
  const auto bad = std::find_if(values->begin() + begin, values->end(),
                                [](float x) { return !std::isfinite(x); });
  return bad == values->end() ? -1 : bad - values->begin();
}

/// What is wrong with records, by record: the first fault of each.
using Faults = std::map<int64_t, std::string>;

/// Finds records with a value that is not finite. After a fault the search goes on at the
/// next record.
void find_not_finite(const Array& array, Faults& faults) {
  for (int64_t at = not_finite(array, 0); at >= 0;) {
    const int64_t record = at / array.row();
    faults.emplace(
        record, fmt::format("{}: value {} of record {} is {}", array.path, at % array.row(), record,
                            std::get<std::vector<float>>(array.values)[static_cast<size_t>(at)]));
    at = not_finite(array, (record + 1) * array.row());
  }
}

/// Finds labels that are none of `classes` classes, or, if `classes` is 0, not in [0, 1].
void find_outside(const Array& labels, int64_t classes, Faults& faults) {
  std::visit(
      [&](const auto& list) {
        for (size_t i = 0; i < list.size(); ++i) {
          const auto label = static_cast<double>(list[i]);
          if (classes == 0 ? label >= 0 && label <= 1
                           : label >= 0 && label < static_cast<double>(classes) &&
                                 label == std::floor(label))
            continue;
          const int64_t record = static_cast<int64_t>(i) / labels.row();
          faults.emplace(
              record,
              classes == 0
                  ? fmt::format(
                        "{}: the label of record {} is {}: loss.kind = \"bce\" wants 0 to 1",
                        labels.path, record, label)
                  : fmt::format("{}: the class of record {} is {}, outside of model.classes = {}",
                                labels.path, record, label, classes));
        }
      },
      labels.values);
}

/// Throws unless there is a label of `width` values for every record.
void check_labels(const Array& values, const Array& labels, int64_t width) {
  if (labels.records() != values.records()) {
    throw Error(fmt::format("{} has {} labels but {} has {} records", labels.path, labels.records(),
                            values.path, values.records()));
  }
  if (labels.row() != width) {
    throw Error(fmt::format("{}: a label has {} values where the model wants {}", labels.path,
                            labels.row(), width));
  }
}

/// Values and labels of one part of the data.
struct Pair {
  std::shared_ptr<const Array> values, labels;
  std::vector<int64_t> good;  ///< the records that can be used
};

/// How a format reads its files.
struct ArrayFiles {
  Array (*read)(const std::string& path);
  bool folders;  ///< a path may be a folder with MNIST's names
};

/// Reads the files of one part. `labels` may be empty.
Pair read_pair(const Job& job, const ArrayFiles& files, const std::string& given,
               std::string labels, bool test, DataReport& report) {
  const std::string mnist = test ? "t10k" : "train";
  std::string path = resolve_path(given);
  if (files.folders && is_folder(path)) {
    const auto named = [&](const std::string& name) {
      const std::string file = path + "/" + mnist + name;
      return path_exists(file) ? file : file + ".gz";
    };
    if (labels.empty()) labels = named("-labels-idx1-ubyte");
    path = named("-images-idx3-ubyte");
  }

  // The records must be what the model reads.
  Pair pair;
  pair.values = std::make_shared<const Array>(files.read(path));
  if (pair.values->records() == 0) throw Error(fmt::format("{}: it has no records", path));
  const ModelConfig& model = job.model;
  int64_t wanted = model.inputs;
  if (reads_images(job)) {
    wanted = 1;
    for (int64_t dim : model.image) wanted *= dim;
  }
  if (pair.values->row() != wanted) {
    throw Error(fmt::format("{}: a record has {} values, but the model reads {} ({})", path,
                            pair.values->row(), wanted,
                            reads_images(job) ? "model.image" : "model.inputs"));
  }

  // Faults of single records are collected first, from values and labels, so that a record counts
  // once. An autoencoder predicts no labels, so theirs may be anything.
  Faults faults;
  find_not_finite(*pair.values, faults);
  if (!labels.empty()) {
    pair.labels = std::make_shared<const Array>(files.read(labels));
    const bool classes = loss_part(job).classes;
    const bool predicted = !model_part(job).reconstructs;
    check_labels(*pair.values, *pair.labels, classes || !predicted ? 1 : model.outputs);
    find_not_finite(*pair.labels, faults);
    if (predicted && (classes || loss_part(job).yes_or_no))
      find_outside(*pair.labels, classes ? model.classes : 0, faults);
  } else if (!model_part(job).reconstructs) {
    throw Error(fmt::format("{}: it has no labels; name their file as data.{}labels", path,
                            test ? "test_" : ""));
  }

  // Depending on data.bad the first fault throws, or the records are left out.
  BadRecords bad(job.data.bad == BadRecord::kSkip, report);
  for (const auto& [record, fault] : faults) bad.add(fault);
  for (int64_t record = 0; record < pair.values->records(); ++record) {
    if (!faults.contains(record)) pair.good.push_back(record);
  }
  if (pair.good.empty()) {
    throw Error(fmt::format("{}: no record can be used; the first fault: {}", path,
                            faults.begin()->second));
  }
  return pair;
}

/// The arrays of a job, split and scaled.
Split open_arrays(const Job& job, const DataGroup& group, const ArrayFiles& files) {
  Split split;
  const Pair train = read_pair(job, files, job.data.path, job.data.labels, false, split.report);

  // The split numbers the usable records; here these become numbers in the file.
  Parts parts = split_records(job, static_cast<int64_t>(train.good.size()), train.values->path);
  for (auto* part : {&parts.train, &parts.held_out}) {
    for (int64_t& record : *part) record = train.good[static_cast<size_t>(record)];
  }

  // Values are scaled by what the training records show, also in evaluation and test.
  const bool images = reads_images(job);
  const auto scaling = scaling_of(job.data.scale, *train.values, images ? job.model.image[0] : 1,
                                  parts.train, group, split.report.statistics);
  const InstalledData* installed = installed_data(job.data.path);
  if (installed != nullptr && !installed->classes.front().empty())
    split.report.classes.assign(installed->classes.begin(), installed->classes.end());
  const auto all = make_arrays(train.values, train.labels, scaling);
  split.train = pick(all, std::move(parts.train));
  split.held_out = pick(all, std::move(parts.held_out));
  if (!job.data.test.empty()) {
    const Pair test =
        read_pair(job, files, job.data.test, job.data.test_labels, true, split.report);
    split.test = pick(make_arrays(test.values, test.labels, scaling), test.good);
  }
  return split;
}

}  // namespace

std::shared_ptr<const Dataset> make_arrays(std::shared_ptr<const Array> values,
                                           std::shared_ptr<const Array> labels,
                                           std::vector<Scaling> scaling) {
  std::visit([](const auto& all) { move_to_huge_pages(all.data(), all.size() * sizeof(all[0])); },
             values->values);
  return std::make_shared<Arrays>(std::move(values), std::move(labels), std::move(scaling));
}

std::vector<Scaling> scaling_of(ValueScale scale, const Array& values, int64_t channels,
                                const std::vector<int64_t>& records, const DataGroup& group,
                                std::vector<std::string>& lines) {
  if (!needs_moments(scale)) return scaling_from(scale, {}, group, lines);

  // Each rank sums a share of the training records; lanes_of is only used to cut the list evenly.
  const Range share = lanes_of(group.rank, group.size, static_cast<int64_t>(records.size()));
  const auto mine = std::span(records).subspan(static_cast<size_t>(share.begin),
                                               static_cast<size_t>(share.size()));
  const int64_t plane = values.row() / channels;
  return scaling_from(
      scale,
      std::visit([&](const auto& list) { return moments(list, plane, channels, mine); },
                 values.values),
      group, lines);
}

Split open_idx(const Job& job, const DataGroup& group) {
  return open_arrays(job, group, {read_idx, true});
}

Split open_numpy(const Job& job, const DataGroup& group) {
  return open_arrays(job, group, {read_npy, false});
}

}  // namespace tutti
