// Records and micro-batches. A dataset is random access; the order, the split and who reads what are arithmetic
// (grid/order.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/job.h"
#include "model/segment.h"

namespace tutti {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Writes record i into row `row` of each tensor (allocated as Model::data says). Thread-safe.
  virtual void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const = 0;
};

/// The training part and the held-out part, split by key (train.seed) over the records; data.held_out = 0 leaves the
/// latter empty.
struct Split {
  std::shared_ptr<const Dataset> train, held_out;
};

/// Opens what data.kind names. Records fill, in this order,
///   text    tokens, targets: int64 [context]; record i is bytes [i*context, i*context + context + 1) of the file
///   walk    the same, generated: a random byte, then steps of 0..4 modulo vocab; 2^40 records and other ones held out
///   points  features: float [inputs], targets: int64 []; generated: a gaussian blob for every class
/// data.path "kjv" is kjv.txt in the data folder ($TUTTI_DATA, else ./data). Throws Error naming the file: missing, not
/// a file, empty, too short for one record, changed while it was read, a byte that model.vocab does not have; or a
/// split that leaves one part without records.
Split open_data(const Job& job);

/// A micro-batch of an evaluation over records [0, records) of `data`: row r gets record first + r; rows past the end
/// are padding: zeros, with targets of -1, which the loss leaves out. Allocates `tensors` as `borders` say when they
/// are empty.
void read_eval(const Dataset& data, const std::vector<Border>& borders, int64_t first, int64_t records,
               std::vector<at::Tensor>& tensors);

/// Tensors for one micro-batch, contents undefined.
std::vector<at::Tensor> allocate(const std::vector<Border>& borders);

/// Mean cross-entropy in nats of a byte bigram model (add-one) over the held-out records' targets, counted on the
/// training records (the first 2^18 of them). Throws Error when one of the two has no records, or values that are not
/// bytes.
double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context);

}  // namespace tutti
