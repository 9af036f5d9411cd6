// Fills micro-batches ahead of their use, on a thread of its own.
#pragma once

#include <memory>
#include <vector>

#include "base/wait.h"
#include "comm/collectives.h"
#include "data/core/dataset.h"
#include "data/images/augment.h"
#include "data/load/partition.h"
#include "grid/grid.h"
#include "grid/mesh.h"
#include "grid/order.h"

namespace tutti {

/// What a loader reads, for whom, and how far ahead.
struct LoaderOptions {
  std::shared_ptr<const Dataset> data;
  std::vector<Border> borders;
  Batch batch;
  /// This rank's micro-batches of a step, in the order in which it takes them; if there are none,
  /// no data is read.
  std::vector<MicroBatch> sequence;
  Order order;
  int64_t first_step = 0;
  int depth = 4;  ///< micro-batches kept ready
  /// how many micro-batches are held at a time, including the newest
  int in_flight = 1;
  std::shared_ptr<const Augment> augment;  ///< null: images stay as they are
  /// If not empty, this rank reads the records that the partition gives it, for whichever rank
  /// computes them, and the ranks exchange rows when a step begins, over `channel` (which then
  /// belongs to the thread that calls begin() and next()).
  Partition partition;
  Channel* channel = nullptr;
};

/// The sequence of a rank that takes its lanes one after the other, and each lane's micro-batches
/// in order.
std::vector<MicroBatch> lane_by_lane(Range lanes, const Batch& batch);

/// Hands out this rank's micro-batches in the order in which the plan loads them: step by step, and
/// within a step in the order of the sequence. One thread may call it.
class Loader {
 public:
  /// Reading starts at once. `clock` and `cancel` must outlive the loader.
  Loader(LoaderOptions options, Clock& clock, const Cancel* cancel);
  ~Loader();

  /// To be called before a step's first next(). With a partition the ranks exchange the step's rows
  /// here. It is then collective, so it must not wait for what a rank does only after its own
  /// begin(). If it is left out, the first next() does it.
  void begin(int64_t step);
  /// The next micro-batch; blocks until it is ready. Its tensors stay valid and unchanged until the
  /// in_flight-th call of next() from here. Rethrows what reading threw. With a partition every
  /// rank does so, naming the rank that read.
  const std::vector<at::Tensor>& next(int64_t step, int lane, int micro);
  /// Time that begin() and next() kept their caller waiting, in all; with a partition this includes
  /// the exchange of rows.
  Duration stalled() const;
  /// The sum of order_digest(position, record) over the samples that next() handed out. Summed over
  /// the ranks, it names what was trained on in which order, whoever read it.
  uint64_t digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
