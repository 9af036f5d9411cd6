// The loader of a rank that reads what it computes, and the choice between the two kinds. A ring of
// depth + in_flight micro-batches is shared by two threads: the reader fills up to `depth` ahead,
// next() hands out, and in_flight are those that the caller still holds.
#include "data/load/loader.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "data/load/batch_feed.h"
#include "data/load/read_ahead.h"

namespace tutti {
namespace {

/// The order is computed for about this many samples at a time, which is faster than
/// per micro-batch.
constexpr int64_t kOrderAhead = 1024;

class ReadingFeed final : public Feed {
 public:
  ReadingFeed(LoaderOptions options, Clock& clock, const Cancel* cancel)
      : options_(std::move(options)),
        shape_(options_),
        places_(places(options_)),
        ahead_(
            static_cast<int64_t>(places_.size()), [this](int64_t index) { fill(index); }, clock,
            cancel) {}

  const std::vector<at::Tensor>& next(int64_t index) override {
    // Asking for this micro-batch gives back the one that leaves the caller's window.
    ahead_.release(std::max<int64_t>(0, index + 1 - shape_.in_flight));
    ahead_.await(index, shape_.step(index));
    const Place& place = place_of(index);
    digest_ += place.digest;
    return place.tensors;
  }
  Duration stalled() const override { return ahead_.stalled(); }
  uint64_t digest() const override { return digest_; }

 private:
  struct Place {
    std::vector<at::Tensor> tensors;
    uint64_t digest = 0;
  };
  static std::vector<Place> places(const LoaderOptions& options) {
    std::vector<Place> made;
    for (int i = 0; i < options.depth + options.in_flight; ++i)
      made.push_back({allocate(options.borders), 0});
    return made;
  }
  Place& place_of(int64_t index) { return places_[static_cast<size_t>(index) % places_.size()]; }

  /// On the reading thread: reads micro-batch `index` into its place.
  void fill(int64_t index) {
    const int64_t first = shape_.first_sample(index);
    if (index == look_at_) look_ahead(index, first);
    const auto records =
        std::span<const int64_t>(order_).subspan(order_.size() - (order_end_ - first), shape_.rows);

    // Records are read, changed and digested here, so that next() only hands out.
    Place& place = place_of(index);
    options_.data->read_rows(records, place.tensors, 0);
    if (options_.augment) options_.augment->apply(place.tensors, first);
    place.digest = 0;
    for (int64_t i = 0; i < shape_.rows; ++i) {
      place.digest +=
          order_digest(static_cast<uint64_t>(first + i), static_cast<uint64_t>(records[i]));
    }
  }

  /// Computes the order for micro-batch `index` and those after it, as long as their samples follow
  /// each other.
  void look_ahead(int64_t index, int64_t first) {
    const int64_t most = std::max<int64_t>(1, kOrderAhead / shape_.rows);
    int64_t count = 1;
    while (count < most && shape_.first_sample(index + count) == first + count * shape_.rows)
      ++count;
    order_.resize(static_cast<size_t>(count * shape_.rows));
    options_.order.records(static_cast<uint64_t>(first), order_);
    order_end_ = first + count * shape_.rows;
    look_at_ = index + count;
  }

  const LoaderOptions options_;
  const FeedShape shape_;
  std::vector<Place> places_;
  std::vector<int64_t> order_;  // the reader's: records of the samples before order_end_
  int64_t order_end_ = 0;
  int64_t look_at_ = 0;  // the first micro-batch after them
  std::atomic<uint64_t> digest_{0};
  ReadAhead ahead_;  // last, since its thread uses all of the above
};

}  // namespace

FeedShape::FeedShape(const LoaderOptions& options)
    : rows(options.batch.micro_batch_size),
      micro_batches(static_cast<int64_t>(options.sequence.size())),
      batch(options.batch),
      sequence(options.sequence),
      first_step(options.first_step),
      in_flight(options.in_flight) {}

int64_t FeedShape::first_sample(int64_t index) const {
  return tutti::first_sample(batch, step(index), at(index).lane, at(index).micro);
}

std::vector<MicroBatch> lane_by_lane(Range lanes, const Batch& batch) {
  std::vector<MicroBatch> sequence;
  for (int lane = static_cast<int>(lanes.begin); lane < lanes.end; ++lane)
    for (int micro = 0; micro < batch.micro_batches; ++micro) sequence.push_back({lane, micro});
  return sequence;
}

std::unique_ptr<Feed> make_reading_feed(LoaderOptions options, Clock& clock, const Cancel* cancel) {
  return std::make_unique<ReadingFeed>(std::move(options), clock, cancel);
}

struct Loader::Impl {
  FeedShape shape;
  std::unique_ptr<Feed> feed;
  int64_t taken = 0;
};

Loader::Loader(LoaderOptions options, Clock& clock, const Cancel* cancel)
    : impl_(std::make_unique<Impl>(FeedShape(options))) {
  TUTTI_CHECK(options.depth > 0 && options.in_flight > 0, "a loader of depth {} and {} in flight",
              options.depth, options.in_flight);
  if (options.data->size() == 0) throw Error("the data has no records to train on");

  // A rank without micro-batches reads nothing, and next() may not be called.
  if (options.sequence.empty()) return;
  const bool alone =
      !options.partition || options.channel == nullptr || options.channel->size() == 1;
  impl_->feed =
      (alone ? make_reading_feed : make_exchanging_feed)(std::move(options), clock, cancel);
}

Loader::~Loader() = default;

const std::vector<at::Tensor>& Loader::next(int64_t step, int lane, int micro) {
  Impl& s = *impl_;
  TUTTI_CHECK(s.feed, "micro-batch (step {}, lane {}, micro {}) asked for, this rank has none",
              step, lane, micro);

  // The plan's order and the sequence must agree; a wrong micro-batch would train without notice.
  const int64_t next_step = s.shape.step(s.taken);
  const MicroBatch& next = s.shape.at(s.taken);
  TUTTI_CHECK(
      step == next_step && lane == next.lane && micro == next.micro,
      "micro-batch (step {}, lane {}, micro {}) asked for, (step {}, lane {}, micro {}) is next",
      step, lane, micro, next_step, next.lane, next.micro);
  return s.feed->next(s.taken++);
}

void Loader::begin(int64_t step) {
  if (impl_->feed) impl_->feed->begin(step - impl_->shape.first_step);
}

Duration Loader::stalled() const { return impl_->feed ? impl_->feed->stalled() : Duration{0}; }

uint64_t Loader::digest() const { return impl_->feed ? impl_->feed->digest() : 0; }

}  // namespace tutti
