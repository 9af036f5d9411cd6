// The two ways in which a loader gets its micro-batches: by reading all of them itself, or by
// exchanging rows with other ranks that read.
#pragma once

#include <memory>
#include <vector>

#include "data/load/loader.h"

namespace tutti {

/// The micro-batches of one rank, counted from 0 at the loader's first step: step by step, and
/// within a step in the order of the sequence.
class Feed {
 public:
  virtual ~Feed() = default;
  /// Does what ranks must do together before the first micro-batch of a step; `number` counts from
  /// the loader's first step. Called once per step.
  virtual void begin(int64_t /*number*/) {}
  /// Micro-batch `index`, asked for with 0, 1, 2, ...; valid until micro-batch `index + in_flight`
  /// is asked for.
  virtual const std::vector<at::Tensor>& next(int64_t index) = 0;
  /// Time that begin() and next() kept their caller waiting, in all; with a partition this includes
  /// the exchange of rows.
  virtual Duration stalled() const = 0;
  /// The sum of order_digest over all micro-batches handed out.
  virtual uint64_t digest() const = 0;
};

/// What both feeds take from the options.
struct FeedShape {
  explicit FeedShape(const LoaderOptions& options);
  int64_t rows;           ///< of a micro-batch
  int64_t micro_batches;  ///< of this rank, per step
  /// Which lane's which micro-batch `index` is.
  const MicroBatch& at(int64_t index) const {
    return sequence[static_cast<size_t>(index % micro_batches)];
  }
  /// The position of its first sample in the job's order.
  int64_t first_sample(int64_t index) const;
  int64_t step(int64_t index) const { return first_step + index / micro_batches; }

  Batch batch;
  std::vector<MicroBatch> sequence;
  int64_t first_step;
  int in_flight;
};

/// For a rank that reads what it computes.
std::unique_ptr<Feed> make_reading_feed(LoaderOptions options, Clock& clock, const Cancel* cancel);
/// For ranks that read by a partition. Collective over options.channel: every rank's begin() of a
/// step, or its next() of the step's first micro-batch, exchanges the step's rows.
std::unique_ptr<Feed> make_exchanging_feed(LoaderOptions options, Clock& clock,
                                           const Cancel* cancel);

}  // namespace tutti
