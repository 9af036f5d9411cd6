// Fills micro-batches ahead of their use on a thread of its own.
#pragma once

#include <memory>
#include <vector>

#include "base/wait.h"
#include "data/dataset.h"
#include "grid/grid.h"

namespace tutti {

/// Hands out the micro-batches of this rank's lanes in the order in which the plan loads them: step by step, lane by
/// lane, micro by micro. Record = record_at(seed, position, n) for the training set.
class Loader {
 public:
  /// `depth` micro-batches are kept ready. Reading starts at once, at `first_step`.
  Loader(std::shared_ptr<const Dataset> data, const std::vector<Border>& borders, Batch batch, Range lanes,
         uint64_t seed, int64_t first_step, int depth, Clock& clock, const Cancel* cancel);
  ~Loader();

  /// The next micro-batch; blocks until it is ready. Its tensors stay valid and unchanged until the next call of
  /// next(). Rethrows what reading threw.
  const std::vector<at::Tensor>& next(int64_t step, int lane, int micro);
  /// Time next() spent waiting, in all.
  Duration stalled() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
