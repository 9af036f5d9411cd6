// The loader of a rank that reads what it computes: a ring of depth + 1 micro-batches between two threads. The reader
// fills ahead, next() hands out; the extra one is the micro-batch that the caller holds.
#include "data/loader.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "data/feed.h"
#include "data/read_ahead.h"

namespace tutti {
namespace {

/// The order is computed for this many samples at a time: that is faster than micro-batch by micro-batch.
constexpr int64_t kOrderAhead = 1024;

class ReadingFeed final : public Feed {
 public:
  ReadingFeed(LoaderOptions options, Clock& clock, const Cancel* cancel)
      : options_(std::move(options)),
        shape_(options_),
        slots_(slots(options_)),
        ahead_(
            static_cast<int64_t>(slots_.size()), [this](int64_t index) { fill(index); }, clock, cancel) {}

  const std::vector<at::Tensor>& next(int64_t index) override {
    ahead_.release(index);
    ahead_.await(index, shape_.step(index));
    const Slot& slot = slot_of(index);
    digest_ += slot.digest;
    return slot.tensors;
  }
  Duration stalled() const override { return ahead_.stalled(); }
  uint64_t digest() const override { return digest_; }

 private:
  struct Slot {
    std::vector<at::Tensor> tensors;
    uint64_t digest = 0;
  };
  static std::vector<Slot> slots(const LoaderOptions& options) {
    std::vector<Slot> made;
    for (int i = 0; i <= options.depth; ++i) made.push_back({allocate(options.borders), 0});
    return made;
  }
  Slot& slot_of(int64_t index) { return slots_[static_cast<size_t>(index) % slots_.size()]; }

  void fill(int64_t index) {
    const int64_t first = shape_.first_sample(index);
    if (index % shape_.micro_batches == 0 || first == order_end_) look_ahead(index, first);
    const auto records = std::span<const int64_t>(order_).subspan(order_.size() - (order_end_ - first), shape_.rows);
    Slot& slot = slot_of(index);
    options_.data->read_rows(records, slot.tensors, 0);
    if (options_.augment) options_.augment->apply(slot.tensors, first);
    slot.digest = 0;
    for (int64_t i = 0; i < shape_.rows; ++i) {
      slot.digest += order_digest(static_cast<uint64_t>(first + i), static_cast<uint64_t>(records[i]));
    }
  }

  /// This rank's samples of a step lie side by side; those of the next step begin elsewhere.
  void look_ahead(int64_t index, int64_t first) {
    const int64_t left = shape_.micro_batches - index % shape_.micro_batches;
    const int64_t count = std::min(left, std::max<int64_t>(1, kOrderAhead / shape_.rows)) * shape_.rows;
    order_.resize(static_cast<size_t>(count));
    options_.order.records(static_cast<uint64_t>(first), order_);
    order_end_ = first + count;
  }

  const LoaderOptions options_;
  const FeedShape shape_;
  std::vector<Slot> slots_;
  std::vector<int64_t> order_;  // the reader's: records of the samples that end before order_end_
  int64_t order_end_ = 0;
  std::atomic<uint64_t> digest_{0};
  ReadAhead ahead_;  // last: its thread uses all of the above
};

}  // namespace

FeedShape::FeedShape(const LoaderOptions& options)
    : rows(options.batch.micro_batch_size),
      micro_batches(options.lanes.size() * options.batch.micro_batches),
      batch(options.batch),
      lanes(options.lanes),
      first_step(options.first_step) {}

int64_t FeedShape::first_sample(int64_t index) const {
  return tutti::first_sample(batch, step(index), static_cast<int>(lanes.begin), 0) + index % micro_batches * rows;
}

std::unique_ptr<Feed> make_reading_feed(LoaderOptions options, Clock& clock, const Cancel* cancel) {
  return std::make_unique<ReadingFeed>(std::move(options), clock, cancel);
}

struct Loader::Impl {
  Batch batch;
  Range lanes;
  int64_t first_step;
  std::unique_ptr<Feed> feed;
  int64_t taken = 0;
};

Loader::Loader(LoaderOptions options, Clock& clock, const Cancel* cancel)
    : impl_(std::make_unique<Impl>(options.batch, options.lanes, options.first_step)) {
  TUTTI_CHECK(options.depth > 0 && !options.lanes.empty() && options.batch.micro_batches > 0,
              "a loader of depth {} for {} lanes of {} micro-batches", options.depth, options.lanes.size(),
              options.batch.micro_batches);
  if (options.data->size() == 0) throw Error("the data has no records to train on");
  const bool alone = !options.partition || options.channel == nullptr || options.channel->size() == 1;
  impl_->feed = (alone ? make_reading_feed : make_exchanging_feed)(std::move(options), clock, cancel);
}

Loader::~Loader() = default;

const std::vector<at::Tensor>& Loader::next(int64_t step, int lane, int micro) {
  Impl& s = *impl_;
  const int64_t per_step = s.lanes.size() * s.batch.micro_batches;
  const int64_t next_step = s.first_step + s.taken / per_step;
  const int64_t next_lane = s.lanes.begin + s.taken % per_step / s.batch.micro_batches;
  const int64_t next_micro = s.taken % s.batch.micro_batches;
  TUTTI_CHECK(step == next_step && lane == next_lane && micro == next_micro,
              "micro-batch (step {}, lane {}, micro {}) asked for, (step {}, lane {}, micro {}) is next", step, lane,
              micro, next_step, next_lane, next_micro);
  return s.feed->next(s.taken++);
}

Duration Loader::stalled() const { return impl_->feed->stalled(); }

uint64_t Loader::digest() const { return impl_->feed->digest(); }

}  // namespace tutti
