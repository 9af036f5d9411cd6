// Records and micro-batches. A dataset is random access; the order, the split and who reads what are arithmetic (grid/order.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
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

/// The training part and the held-out part, split by key over the records. Throws Error naming the file: missing, empty, too short
/// for one record, changed while it was read.
struct Split {
  std::shared_ptr<const Dataset> train, held_out;
};
Split open_data(const Job& job);

/// Mean cross-entropy in nats of a byte bigram model (add-one) counted on the training records, over the held-out records' targets.
double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context);

}  // namespace tutti
