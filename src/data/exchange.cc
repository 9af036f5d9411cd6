// The loader of ranks that read by a partition of the records.
//   N ranks, a step of S samples; reader(s) = partition(record(s)), owner(s) = the rank that computes sample s
//   1. on its thread, every rank reads the rows of the samples it is the reader of, in sample order
//   2. at the first next() of the step all ranks learn each other's lanes and whether all could read
//   3. an owner's samples are a range, so its rows lie side by side at every reader: they are sent as they lie
//   4. an owner deals the rows it received to its micro-batches in sample order
// Every rank computes records and readers of all S samples, so nobody has to be told how much will come.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "data/feed.h"
#include "data/read_ahead.h"

namespace tutti {
namespace {

/// One step being read while one is handed out.
constexpr int64_t kSteps = 2;

/// What a rank tells the others before rows travel.
struct Status {
  int64_t first_lane = 0, last_lane = 0;
  char fault[240] = {};  ///< empty: all was read
};

/// Mixup's tensors are not the data's: augmentation writes them.
bool travels(const Border& border) { return border.name != "other_targets" && border.name != "mix"; }

class ExchangingFeed final : public Feed {
 public:
  ExchangingFeed(LoaderOptions options, Clock& clock, const Cancel* cancel)
      : options_(std::move(options)),
        shape_(options_),
        channel_(*options_.channel),
        clock_(clock),
        cancel_(cancel),
        steps_(kSteps),
        incoming_(static_cast<size_t>(channel_.size())),
        ahead_(
            kSteps, [this](int64_t step) { read_step(step); }, clock, cancel) {
    for (int64_t i = 0; i < shape_.micro_batches; ++i) micro_batches_.push_back(allocate(options_.borders));
    for (size_t k = 0; k < options_.borders.size(); ++k) {
      row_bytes_.push_back(micro_batches_[0][k].nbytes() / static_cast<size_t>(shape_.rows));
    }
  }

  const std::vector<at::Tensor>& next(int64_t index) override {
    const int64_t micro = index % shape_.micro_batches;
    if (micro == 0) exchange(index / shape_.micro_batches);
    const std::vector<at::Tensor>& tensors = micro_batches_[static_cast<size_t>(micro)];
    if (options_.augment) options_.augment->apply(tensors, shape_.first_sample(index));
    digest_ += digests_[static_cast<size_t>(micro)];
    return tensors;
  }
  Duration stalled() const override { return Duration(stalled_.load()); }
  uint64_t digest() const override { return digest_; }

 private:
  /// A step as its reader leaves it: of all samples the record and its reader, and the rows read here.
  struct Step {
    std::vector<int64_t> records, mine;
    std::vector<int> readers;
    std::vector<at::Tensor> rows;
    int64_t capacity = 0;
  };
  Step& step_of(int64_t step) { return steps_[static_cast<size_t>(step % kSteps)]; }

  void read_step(int64_t number) {
    Step& step = step_of(number);
    const int64_t samples = shape_.batch.samples();
    step.records.resize(static_cast<size_t>(samples));
    step.readers.resize(static_cast<size_t>(samples));
    step.mine.clear();
    options_.order.records(static_cast<uint64_t>((shape_.first_step + number) * samples), step.records);
    for (size_t i = 0; i < step.records.size(); ++i) {
      const int reader = options_.partition(step.records[i]);
      if (reader < 0 || reader >= channel_.size()) {
        throw Error(
            fmt::format("the partition gives record {} to rank {} of {}", step.records[i], reader, channel_.size()));
      }
      step.readers[i] = reader;
      if (reader == channel_.rank()) step.mine.push_back(step.records[i]);
    }
    const auto rows = static_cast<int64_t>(step.mine.size());
    if (rows > step.capacity) {
      std::vector<Border> borders = options_.borders;
      for (Border& border : borders) border.dims[0] = rows;
      step.rows = allocate(borders);
      step.capacity = rows;
    }
    if (rows > 0) options_.data->read_rows(step.mine, step.rows, 0);
  }

  std::byte* row(const Step& step, size_t k, int64_t row) const {
    if (step.rows.empty()) return nullptr;
    return static_cast<std::byte*>(step.rows[k].mutable_data_ptr()) + static_cast<size_t>(row) * row_bytes_[k];
  }

  void exchange(int64_t number) {
    const Time begin = clock_.now();
    const std::vector<Range> samples = agree(number);
    const Step& step = step_of(number);
    const auto ranks = static_cast<size_t>(channel_.size());
    const auto me = static_cast<size_t>(channel_.rank());
    // Rows of `from` among the samples of a range.
    const auto count = [&step](Range range, size_t from) {
      return std::count(step.readers.begin() + range.begin, step.readers.begin() + range.end, static_cast<int>(from));
    };
    std::vector<int64_t> first(ranks), sent(ranks), received(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      first[r] = count({0, samples[r].begin}, me);
      sent[r] = count(samples[r], me);
      received[r] = count(samples[me], r);
    }
    std::vector<const std::byte*> from(ranks);
    for (size_t k = 0; k < options_.borders.size(); ++k) {
      if (!travels(options_.borders[k])) continue;
      const size_t bytes = row_bytes_[k];
      std::vector<std::span<const std::byte>> out(ranks);
      std::vector<std::span<std::byte>> in(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        if (r == me) continue;
        incoming_[r].resize(std::max(incoming_[r].size(), static_cast<size_t>(received[r]) * bytes));
        out[r] = {row(step, k, first[r]), static_cast<size_t>(sent[r]) * bytes};
        in[r] = std::span(incoming_[r]).first(static_cast<size_t>(received[r]) * bytes);
      }
      channel_.all_to_all(out, in);
      for (size_t r = 0; r < ranks; ++r) from[r] = r == me ? row(step, k, first[r]) : incoming_[r].data();
      deal(step, samples[me], k, from);
    }
    sum_digests(number, step, samples[me]);
    ahead_.release(number + 1);
    stalled_.fetch_add((clock_.now() - begin).count());
  }

  /// Waits until all ranks have read the step; the samples, counted from the step's first, that each computes.
  std::vector<Range> agree(int64_t number) {
    const int64_t step = shape_.first_step + number;
    Status mine{shape_.lanes.begin, shape_.lanes.end, {}};
    try {
      ahead_.await(number, step);
    } catch (const std::exception& error) {
      if (cancel_ != nullptr && cancel_->cancelled()) throw;
      const std::string fault = *error.what() != '\0' ? error.what() : "unknown";
      std::memcpy(mine.fault, fault.data(), std::min(fault.size(), sizeof mine.fault - 1));
    }
    std::vector<Status> all(static_cast<size_t>(channel_.size()));
    channel_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    std::vector<Range> samples;
    const int64_t per_lane = int64_t{shape_.batch.micro_batches} * shape_.rows;
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].fault[0] != '\0') {
        throw Error(fmt::format("rank {} could not read the data of step {}: {}", r, step, all[r].fault));
      }
      samples.push_back({all[r].first_lane * per_lane, all[r].last_lane * per_lane});
    }
    return samples;
  }

  /// Copies the rows of tensor k to this rank's micro-batches; from[r] is where those of reader r begin.
  void deal(const Step& step, Range samples, size_t k, std::vector<const std::byte*>& from) {
    const size_t bytes = row_bytes_[k];
    const int* reader = step.readers.data() + samples.begin;
    for (const std::vector<at::Tensor>& tensors : micro_batches_) {
      auto* to = static_cast<std::byte*>(tensors[k].mutable_data_ptr());
      for (int64_t i = 0; i < shape_.rows; ++i, to += bytes) {
        const std::byte*& at = from[static_cast<size_t>(*reader++)];
        std::memcpy(to, at, bytes);
        at += bytes;
      }
    }
  }

  void sum_digests(int64_t number, const Step& step, Range samples) {
    digests_.assign(micro_batches_.size(), 0);
    const int64_t first = (shape_.first_step + number) * shape_.batch.samples();
    for (int64_t i = samples.begin; i < samples.end; ++i) {
      digests_[static_cast<size_t>((i - samples.begin) / shape_.rows)] +=
          order_digest(static_cast<uint64_t>(first + i), static_cast<uint64_t>(step.records[static_cast<size_t>(i)]));
    }
  }

  const LoaderOptions options_;
  const FeedShape shape_;
  Channel& channel_;
  Clock& clock_;
  const Cancel* const cancel_;
  std::vector<Step> steps_;
  std::vector<std::vector<std::byte>> incoming_;        // by reader
  std::vector<std::vector<at::Tensor>> micro_batches_;  // of the step that is handed out
  std::vector<size_t> row_bytes_;                       // by tensor
  std::vector<uint64_t> digests_;                       // by micro-batch
  std::atomic<uint64_t> digest_{0};
  std::atomic<int64_t> stalled_{0};
  ReadAhead ahead_;  // last: its thread uses all of the above
};

}  // namespace

std::unique_ptr<Feed> make_exchanging_feed(LoaderOptions options, Clock& clock, const Cancel* cancel) {
  return std::make_unique<ExchangingFeed>(std::move(options), clock, cancel);
}

}  // namespace tutti
