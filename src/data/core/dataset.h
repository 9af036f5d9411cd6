// Records and micro-batches. A dataset is random access; the order, the split and who reads what
// are arithmetic (grid/order.h).
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

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Writes record i into row `row` of each tensor (allocated as Model::data says). Thread-safe.
  virtual void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const = 0;
  /// Record records[i] into row first_row + i, for all i: what a source can do faster than one by
  /// one.
  virtual void read_rows(std::span<const int64_t> records, std::span<const at::Tensor> tensors,
                         int64_t first_row) const {
    for (size_t i = 0; i < records.size(); ++i)
      read(records[i], tensors, first_row + static_cast<int64_t>(i));
  }
  /// The class of a record, -1 where there is none: for balance, partitions and reports.
  virtual int64_t label(int64_t record) const { return -1; }
  /// For data.resample = "column".
  virtual double weight(int64_t record) const { return 1; }
  /// A number that is equal for records with equal values in a column; throws Error for a column
  /// that there is not.
  virtual uint64_t feature(int64_t record, const std::string& column) const;
};

/// What opening the data found, for the run's events and for people.
struct DataReport {
  std::vector<std::string> classes;  ///< names; empty: they are numbers or there are none
  /// malformed records (data.bad = "skip"), dropped ones included
  int64_t skipped = 0;
  std::vector<std::string> faults;  ///< the first few of them, "file:line:column: what"
  std::string notice;               ///< held_out_notice (data/core/sources.h)
  /// "age mean 38.2 deviation 13.1": statistics of the training records that features were scaled
  /// by.
  std::vector<std::string> statistics;
};

class Tokenizer;

/// The parts of the data, split by key (train.seed) over the records; data.held_out = 0 leaves
/// held_out empty. `test` is null where the job names none.
struct Split {
  std::shared_ptr<const Dataset> train, held_out, test;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< text that is not bytes
  DataReport report;
};

/// The ranks that open the data together: statistics are computed over shares of the records and
/// joined exactly, so they are the same for every number of ranks.
struct DataGroup {
  int rank = 0, size = 1;
  /// Every rank's bytes, in rank order. Not called when size is 1.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
};

/// Opens what data.kind names. Records fill, in this order,
///   text    tokens, targets: int64 [context]; record i is bytes [i*context, i*context + context +
///           1) of the file
///   walk    the same, generated: a random byte, then steps of 0..4 modulo vocab; 2^40 records and
///           other ones held out
///   points  features: float [inputs], targets: int64 []; generated: a gaussian blob for every
///           class
///   clicks  numbers, categories, targets: float [1]; generated from a known truth
///           (data/tables/generated.cc)
///   idx, images, numpy   images or features: float, scaled as data.scale says; targets: int64 []
///                        (numpy floats: float)
///   csv, jsonl           numbers (or features) [and categories], targets: as data.columns say
/// data.path "kjv" is kjv.txt in the data folder ($TUTTI_DATA, else ./data). Throws Error naming
/// the file: missing, not a file, empty, too short for one record, changed while it was read, a
/// byte that model.vocab does not have; or a split that leaves one part without records.
Split open_data(const Job& job, const DataGroup& group = {});

/// A micro-batch of an evaluation over records [0, records) of `data`: row r gets record first + r;
/// rows past the end are padding: zeros, with targets of -1, which the loss leaves out. Allocates
/// `tensors` as `borders` say when they are empty.
void read_eval(const Dataset& data, const std::vector<Border>& borders, int64_t first,
               int64_t records, std::vector<at::Tensor>& tensors);

/// Tensors for one micro-batch, contents undefined.
std::vector<at::Tensor> allocate(const std::vector<Border>& borders);

/// Mean cross-entropy in nats of a byte bigram model (add-one) over the held-out records' targets,
/// counted on the training records (the first 2^18 of them). Throws Error when one of the two has
/// no records, or values that are not bytes.
double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context);

}  // namespace tutti
