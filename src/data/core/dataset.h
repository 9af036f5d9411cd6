// Records and micro-batches. A dataset is random access: the order, the split and who reads what
// are arithmetic on record numbers (grid/order.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// Records, by number. Any number of threads may read a dataset at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Writes one record into row `row` of each tensor (allocated as Model::data says). Thread-safe.
  virtual void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const = 0;
  /// Writes record records[i] into row first_row + i, for all i. A source overrides it if it can do
  /// this faster than one by one.
  virtual void read_rows(std::span<const int64_t> records, std::span<const at::Tensor> tensors,
                         int64_t first_row) const {
    for (size_t i = 0; i < records.size(); ++i)
      read(records[i], tensors, first_row + static_cast<int64_t>(i));
  }
  /// The class of a record, or -1 if it has none: for balance, partitions and reports.
  virtual int64_t label(int64_t record) const { return -1; }
  /// The weight of a record, for data.resample = "column".
  virtual double weight(int64_t record) const { return 1; }
  /// A number that is equal for records with equal values in a column. Throws Error for a column
  /// that the data does not have.
  virtual uint64_t feature(int64_t record, const std::string& column) const;
};

/// What opening the data found, for the run's events and for people.
struct DataReport {
  std::vector<std::string> classes;  ///< names; empty if they are numbers, or none
  /// malformed records that were left out (data.bad = "skip"), and dropped ones
  int64_t skipped = 0;
  std::vector<std::string> faults;  ///< the first few of them, "file:line:column: what"
  std::string notice;               ///< held_out_notice (data/core/sources.h)
  /// "age mean 38.2 deviation 13.1": the statistics of the training records by which features
  /// were scaled
  std::vector<std::string> statistics;
};

class Tokenizer;

/// The parts of the data. Training and held-out records are split by key (train.seed);
/// data.held_out = 0 leaves held_out empty. `test` is null if the job names none.
struct Split {
  std::shared_ptr<const Dataset> train, held_out, test;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of text, unless its tokens are bytes
  /// The held-out loss of what the records were drawn from, which no model can expect to beat. Null
  /// where it is not known.
  std::function<double()> truth;
  DataReport report;
};

/// The ranks that open the data together. Statistics are computed over shares of the records and
/// joined exactly, so they are the same for every number of ranks.
struct DataGroup {
  int rank = 0, size = 1;
  /// Returns every rank's bytes in rank order (an all-gather). Not called when size is 1.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
};

/// Opens what data.kind names. Records fill these tensors, in this order:
///   text, token files   tokens, targets: int64 [context]; record i is the file's bytes or tokens
///                       [i*context, i*context + context + 1)
///   walk                the same, generated: a random byte, then steps of 0..4 modulo vocab; 2^40
///                       records for training, further ones held out
///   points              features: float [inputs], targets: int64 []; generated: a gaussian blob
///                       for every class
///   clicks              numbers, categories, targets: float [1]; generated from a known truth
///                       (data/tables/generated.cc)
///   images and arrays   images or features: float, scaled as data.scale says; targets: int64 [],
///                       or float [outputs] where they are values
///   tables              numbers (or features) [and categories], targets: as data.columns say
/// data.path "kjv" is kjv.txt in the data folder ($TUTTI_DATA, else ./data). Throws Error naming
/// the file if it is missing, not a file, empty, too short for one record, or changed while it
/// was read, or has a byte that model.vocab does not have; also if a split leaves one part
/// without records.
Split open_data(const Job& job, const DataGroup& group = {});
/// The formats that there are.
std::vector<std::string> format_names();

/// A micro-batch of an evaluation over records [0, records) of `data`. Row r gets record first + r.
/// Rows past the end are padding: zeros, with targets of -1, which the loss leaves out. Allocates
/// `tensors` as `borders` say if they are empty.
void read_eval(const Dataset& data, const std::vector<Border>& borders, int64_t first,
               int64_t records, std::vector<at::Tensor>& tensors);

/// Allocates tensors for one micro-batch; their contents are undefined.
std::vector<at::Tensor> allocate(const std::vector<Border>& borders);

}  // namespace tutti
