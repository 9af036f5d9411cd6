// From a job to its data: opens the source that data.kind names and splits its records.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "config/check/table_columns.h"
#include "config/job_parts.h"
#include "config/reserved_words.h"
#include "data/core/sources.h"
#include "data/tables/table.h"
#include "data/text/tokens.h"
#include "grid/order.h"

namespace tutti {
namespace {

constexpr int64_t kGeneratedHeldOut = 4096;

/// Some records of another dataset, by number: a split is two of these over one source.
class Picked final : public Dataset {
 public:
  Picked(std::shared_ptr<const Dataset> source, std::vector<int64_t> records)
      : source_(std::move(source)), records_(std::move(records)) {}
  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    source_->read(at(record), tensors, row);
  }
  void read_rows(std::span<const int64_t> records, std::span<const at::Tensor> tensors,
                 int64_t first_row) const override {
    std::vector<int64_t> there(records.size());
    for (size_t i = 0; i < records.size(); ++i) there[i] = at(records[i]);
    source_->read_rows(there, tensors, first_row);
  }
  int64_t label(int64_t record) const override { return source_->label(at(record)); }
  double weight(int64_t record) const override { return source_->weight(at(record)); }
  uint64_t feature(int64_t record, const std::string& column) const override {
    return source_->feature(at(record), column);
  }

 private:
  int64_t at(int64_t record) const { return records_[static_cast<size_t>(record)]; }
  std::shared_ptr<const Dataset> source_;
  std::vector<int64_t> records_;
};

/// A range of the records of a generated dataset, of which there are too many to list.
class Ranged final : public Dataset {
 public:
  Ranged(std::shared_ptr<const Dataset> source, int64_t first, int64_t size)
      : source_(std::move(source)), first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    source_->read(first_ + record, tensors, row);
  }
  int64_t label(int64_t record) const override { return source_->label(first_ + record); }

 private:
  std::shared_ptr<const Dataset> source_;
  int64_t first_, size_;
};

Split generated(const std::shared_ptr<const Dataset>& source, const DataConfig& data) {
  if (!data.test.empty())
    throw Error(
        fmt::format("data.test = \"{}\" but data.kind = \"{}\": its records are generated, the "
                    "held-out ones too",
                    data.test, data.kind));

  // data.held_out is a number of records, or a fraction; of endless records a fraction
  // is kGeneratedHeldOut.
  const int64_t held = data.held_out >= 1  ? std::llround(data.held_out)
                       : data.held_out > 0 ? kGeneratedHeldOut
                                           : 0;
  Split split;
  split.train = std::make_shared<Ranged>(source, 0, kGenerated);
  split.held_out = std::make_shared<Ranged>(source, kGenerated, held);
  return split;
}

Split split_of(const Job& job, const std::shared_ptr<const Dataset>& source,
               const std::string& path) {
  Parts parts = split_records(job, source->size(), path);
  Split split;
  split.train = pick(source, std::move(parts.train));
  split.held_out = pick(source, std::move(parts.held_out));
  return split;
}

/// Text as bytes or, by a tokenizer, as tokens. `read` gives the text of a file. The text of
/// data.test is encoded like the training text.
Split text_split(const Job& job, const std::string& path,
                 const std::function<std::string(const std::string&)>& read) {
  const bool tested = !job.data.test.empty();
  const int64_t context = job.model.context, vocab = job.model.vocab;
  if (tokens_are_bytes(job.data)) {
    Split split = split_of(job, open_text(read(path), path, context, vocab), path);
    if (tested) split.test = open_text(read(job.data.test), job.data.test, context, vocab);
    return split;
  }

  // A record is `context` tokens, so the split can only follow the encoding.
  TokenSource source = open_text_tokens(read(path), job, path);
  Split split = split_of(job, source.data, path);
  if (tested)
    split.test =
        open_tokens(source.tokenizer->encode(read(job.data.test)), context, vocab, job.data.test);
  split.tokenizer = std::move(source.tokenizer);
  return split;
}

/// Files of tokens that were encoded before.
Split open_token_file(const Job& job, const std::string& path) {
  const auto open = [&](const std::string& file) {
    return open_tokens(read_tokens(file), job.model.context, job.model.vocab, file);
  };
  Split split = split_of(job, open(path), path);
  if (!job.data.test.empty()) split.test = open(job.data.test);
  return split;
}

/// One text column of a table, as text.
Split open_jsonl_text(const Job& job) {
  std::vector<std::string> faults;
  const std::vector<Column> columns = parse_columns(job.data.columns, faults);
  if (!faults.empty()) throw ConfigError(std::move(faults));
  DataReport report;
  Split split = text_split(job, job.data.path, [&](const std::string& path) {
    return read_jsonl_text(path, columns.front().name, job.data, report);
  });
  split.report = std::move(report);
  return split;
}

}  // namespace

std::shared_ptr<const Dataset> pick(std::shared_ptr<const Dataset> source,
                                    std::vector<int64_t> records) {
  return std::make_shared<Picked>(std::move(source), std::move(records));
}

Parts split_records(const Job& job, int64_t records, const std::string& path) {
  const DataConfig& data = job.data;
  const uint64_t seed = job.train.seed, n = static_cast<uint64_t>(records);
  const bool folds = data.folds > 1, counted = !folds && data.held_out >= 1;
  // Every fold checks this, so that the first one fails and not the one whose turn comes
  // hours later.
  if (folds && data.folds > records)
    throw Error(
        fmt::format("{}: it has {} records, too few for {} folds", path, records, data.folds));
  if (counted && data.held_out > static_cast<double>(records))
    throw Error(fmt::format("{}: data.held_out = {}, but there are {} records", path, data.held_out,
                            records));

  // Whether a record is held out depends on its number and the seed alone: no rank has to
  // tell another.
  Parts parts;
  for (int64_t record = 0; record < records; ++record) {
    const auto key = static_cast<uint64_t>(record);
    const bool out = folds     ? fold_of(seed, key, n, data.folds) == data.fold
                     : counted ? held_out_of(seed, key, n, static_cast<uint64_t>(data.held_out))
                               : held_out(seed, key, data.held_out);
    (out ? parts.held_out : parts.train).push_back(record);
  }

  // A part that is needed must have records.
  const bool wanted = folds || data.held_out > 0;
  if (parts.train.empty() || (parts.held_out.empty() && wanted)) {
    throw Error(fmt::format("{}: {} of {} records leaves none for {}", path,
                            folds ? fmt::format("fold {} of {}", data.fold, data.folds)
                                  : fmt::format("data.held_out = {}", data.held_out),
                            records, parts.train.empty() ? "training" : "evaluation"));
  }
  return parts;
}

std::string held_out_notice(double asked, int64_t records, int64_t held) {
  if (asked >= 1 && static_cast<double>(held) == asked) return "";
  if (asked >= 1)
    return fmt::format("data.held_out = {}, but {} are left of them: outliers were dropped", asked,
                       held);

  // A fraction draws each record by itself, so some deviation is expected; only a large one
  // is told.
  const double expected = asked * static_cast<double>(records);
  if (std::abs(static_cast<double>(held) - expected) <= std::max(1.0, expected / 4)) return "";
  return fmt::format(
      "data.held_out = {} of {} records would be {:.3g}, but {} came out: each is drawn by itself; "
      "data.held_out = {} holds out exactly so many",
      asked, records, expected, held, std::max<int64_t>(1, std::llround(expected)));
}

namespace {

/// A format of the table in config/job_parts.cc: how its records come in, already split.
struct Format {
  std::string_view name;
  Split (*open)(const Job& job, const DataGroup& group);
};

constexpr Format kFormats[] = {
    {"text",
     [](const Job& job, const DataGroup&) {
       return text_split(job, resolve_path(job.data.path), read_gz);
     }},
    {"tokens", [](const Job& job,
                  const DataGroup&) { return open_token_file(job, resolve_path(job.data.path)); }},
    {"walk",
     [](const Job& job, const DataGroup&) {
       const auto walk = make_walk(job.train.seed, job.model.context, job.model.vocab);
       return generated(walk, job.data);
     }},
    {"points",
     [](const Job& job, const DataGroup&) {
       const auto points = make_points(job.train.seed, job.model.inputs, job.model.classes);
       return generated(points, job.data);
     }},
    {"clicks",
     [](const Job& job, const DataGroup&) {
       Split split = generated(make_clicks(job.train.seed), job.data);
       split.truth = [seed = job.train.seed, held_out = split.held_out->size()] {
         return clicks_truth_loss(seed, held_out);
       };
       return split;
     }},
    {"idx", open_idx},
    {"csv", open_csv},
    {"jsonl",
     [](const Job& job, const DataGroup& group) {
       return model_part(job).sequences ? open_jsonl_text(job) : open_jsonl(job, group);
     }},
    {"numpy", open_numpy},
    {"images", open_images},
};

}  // namespace

std::vector<std::string> format_names() { return row_names(kFormats); }

Split open_data(const Job& job, const DataGroup& group) {
  const DataConfig& data = job.data;
  for (const Format& format : kFormats) {
    if (format.name != data.kind) continue;
    Split split = format.open(job, group);

    // Folds hold out their exact share, as generated records do: there is nothing to notice.
    const int64_t held = split.held_out->size();
    if (data.folds < 2 && !data_part(job).generated)
      split.report.notice = held_out_notice(data.held_out, split.train->size() + held, held);
    return split;
  }
  throw Error(fmt::format("data.kind = \"{}\" is not known", data.kind));
}

}  // namespace tutti
