// The two ways in which a loader comes by its micro-batches: by reading all of them, or by
// exchanging rows with other ranks that read.
#pragma once

#include <memory>
#include <vector>

#include "data/load/loader.h"

namespace tutti {

/// Micro-batches of one rank, counted from 0 at the loader's first step: step by step, each in the
/// order of the sequence.
class Feed {
 public:
  virtual ~Feed() = default;
  /// What ranks must do together before the first micro-batch of a step, counted from the loader's
  /// first; once a step.
  virtual void begin(int64_t /*number*/) {}
  /// Micro-batch `index`, called with 0, 1, 2, ...; valid until that of `index + in_flight`.
  virtual const std::vector<at::Tensor>& next(int64_t index) = 0;
  virtual Duration stalled() const = 0;
  /// Over all micro-batches handed out.
  virtual uint64_t digest() const = 0;
};

/// What both take from the options.
struct FeedShape {
  explicit FeedShape(const LoaderOptions& options);
  int64_t rows;           ///< of a micro-batch
  int64_t micro_batches;  ///< of this rank, a step
  /// Which one micro-batch `index` is.
  const MicroBatch& at(int64_t index) const {
    return sequence[static_cast<size_t>(index % micro_batches)];
  }
  /// The position of its first sample.
  int64_t first_sample(int64_t index) const;
  int64_t step(int64_t index) const { return first_step + index / micro_batches; }

  Batch batch;
  std::vector<MicroBatch> sequence;
  int64_t first_step;
  int in_flight;
};

std::unique_ptr<Feed> make_reading_feed(LoaderOptions options, Clock& clock, const Cancel* cancel);
/// Collective over options.channel: every rank's begin() of a step, or its next() of the first
/// micro-batch, exchanges the step's rows.
std::unique_ptr<Feed> make_exchanging_feed(LoaderOptions options, Clock& clock,
                                           const Cancel* cancel);

}  // namespace tutti
