// The loader of ranks that read by a partition of the records.
//   N ranks, a step of S samples
//   reader(s)  partition(record(s)), the rank that reads sample s
//   owner(s)   the rank that computes sample s
//   1. On its reading thread, every rank reads the rows of the samples whose reader it is, in
//      sample order.
//   2. Ranks learn each other's sequences when the first step begins, and when any step begins,
//      whether all could read.
//   3. A reader sends an owner's rows in the order of the owner's sequence. Rows that are next to
//      each other in memory (those of an owner of a range of lanes) are sent from there; others are
//      put together first.
//   4. An owner deals the rows that it received to its micro-batches in that order.
// A sample may have several owners: the ranks of a mesh that share a replica. Every rank computes
// records and readers of all S samples, so nobody has to be told how much will come.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/text/message.h"
#include "comm/gather.h"
#include "data/load/batch_feed.h"
#include "data/load/read_ahead.h"

namespace tutti {
namespace {

/// One step is being read while one is handed out.
constexpr int64_t kSteps = 2;

/// What a rank tells the others before rows travel. It has a fixed size, so one all-gather does.
struct Status {
  char fault[240] = {};  ///< empty if all was read
};

/// Mixup's tensors are written by augmentation and do not come from the data.
bool travels(const Border& border) {
  return border.name != "other_targets" && border.name != "mix";
}

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
        outgoing_(static_cast<size_t>(channel_.size())),
        ahead_(
            kSteps, [this](int64_t step) { read_step(step); }, clock, cancel) {
    // The plan may hold in_flight micro-batches, which may reach into the next steps. So there are
    // as many sets of a step's micro-batches as these can touch.
    const int64_t sets =
        1 + (shape_.in_flight - 1 + shape_.micro_batches - 1) / shape_.micro_batches;
    sets_.resize(static_cast<size_t>(sets));
    for (auto& set : sets_)
      for (int64_t i = 0; i < shape_.micro_batches; ++i) set.push_back(allocate(options_.borders));
    for (size_t k = 0; k < options_.borders.size(); ++k) {
      row_bytes_.push_back(sets_[0][0][k].nbytes() / static_cast<size_t>(shape_.rows));
    }
  }

  void begin(int64_t number) override {
    if (number == begun_) return;
    begun_ = number;
    exchange(number);
  }
  const std::vector<at::Tensor>& next(int64_t index) override {
    const int64_t micro = index % shape_.micro_batches;
    begin(index / shape_.micro_batches);
    const std::vector<at::Tensor>& tensors =
        set_of(index / shape_.micro_batches)[static_cast<size_t>(micro)];

    // Images are changed by their owner and not by their reader: the draws depend on the sample,
    // and mixup needs the whole micro-batch.
    if (options_.augment) options_.augment->apply(tensors, shape_.first_sample(index));
    digest_ += digests_[static_cast<size_t>(micro)];
    return tensors;
  }
  Duration stalled() const override { return Duration(stalled_.load()); }
  uint64_t digest() const override { return digest_; }

 private:
  /// A step as the reading thread leaves it: the record and the reader of every sample, and the
  /// rows that were read here.
  struct Step {
    std::vector<int64_t> records, mine;
    std::vector<int> readers;
    std::vector<at::Tensor> rows;
    int64_t capacity = 0;
  };
  Step& step_of(int64_t step) { return steps_[static_cast<size_t>(step % kSteps)]; }
  using MicroBatches = std::vector<std::vector<at::Tensor>>;
  MicroBatches& set_of(int64_t step) { return sets_[static_cast<size_t>(step) % sets_.size()]; }

  /// On the reading thread: reads this rank's rows of a step.
  void read_step(int64_t number) {
    Step& step = step_of(number);
    const int64_t samples = shape_.batch.samples();
    step.records.resize(static_cast<size_t>(samples));
    step.readers.resize(static_cast<size_t>(samples));
    step.mine.clear();

    // The order and the partition say which record every sample of the step is and who reads it,
    // also for the samples of others: exchange() needs them all.
    options_.order.records(static_cast<uint64_t>((shape_.first_step + number) * samples),
                           step.records);
    for (size_t i = 0; i < step.records.size(); ++i) {
      const int reader = options_.partition(step.records[i]);
      if (reader < 0 || reader >= channel_.size()) {
        throw Error(fmt::format("the partition gives record {} to rank {} of {}", step.records[i],
                                reader, channel_.size()));
      }
      step.readers[i] = reader;
      if (reader == channel_.rank()) step.mine.push_back(step.records[i]);
    }

    // Memory for rows only grows, since the number of rows changes from step to step.
    const auto rows = static_cast<int64_t>(step.mine.size());
    if (rows > step.capacity) {
      std::vector<Border> borders = options_.borders;
      for (Border& border : borders) border.dims[0] = rows;
      step.rows = allocate(borders);
      step.capacity = rows;
    }
    if (rows > 0) options_.data->read_rows(step.mine, step.rows, 0);
  }

  /// Row `row` of tensor k among those read here.
  std::byte* row(const Step& step, size_t k, int64_t row) const {
    if (step.rows.empty()) return nullptr;
    return static_cast<std::byte*>(step.rows[k].mutable_data_ptr()) +
           static_cast<size_t>(row) * row_bytes_[k];
  }

  /// Brings every row of the step to its owners.
  void exchange(int64_t number) {
    const Time begin = clock_.now();
    agree(number);
    const Step& step = step_of(number);
    const auto ranks = static_cast<size_t>(channel_.size());
    const auto me = static_cast<size_t>(channel_.rank());

    // How much comes from whom follows from the readers of this rank's samples.
    const std::vector<std::vector<int64_t>> sent = rows_for_owners(step);
    std::vector<size_t> received(ranks);
    for (int64_t sample : samples_[me])
      ++received[static_cast<size_t>(step.readers[static_cast<size_t>(sample)])];
    std::vector<const std::byte*> from(ranks);

    // Tensor by tensor, since each has memory of its own. A rank's own rows are not sent.
    for (size_t k = 0; k < options_.borders.size(); ++k) {
      if (!travels(options_.borders[k])) continue;
      const size_t bytes = row_bytes_[k];
      std::vector<std::span<const std::byte>> out(ranks);
      std::vector<std::span<std::byte>> in(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        out[r] = together(step, k, sent[r], outgoing_[r]);
        if (r == me) continue;
        incoming_[r].resize(std::max(incoming_[r].size(), received[r] * bytes));
        in[r] = std::span(incoming_[r]).first(received[r] * bytes);
      }
      channel_.all_to_all(out, in);
      for (size_t r = 0; r < ranks; ++r) from[r] = r == me ? out[r].data() : incoming_[r].data();
      deal(step, set_of(number), k, from);
    }

    // Only now may the reading thread overwrite the step's rows.
    sum_digests(number, step);
    ahead_.release(number + 1);
    stalled_.fetch_add((clock_.now() - begin).count());
  }

  /// Waits until all ranks have read the step. If one could not, all throw its fault: otherwise the
  /// others would wait for rows that never come.
  void agree(int64_t number) {
    const int64_t step = shape_.first_step + number;
    if (samples_.empty()) learn_sequences();
    Status mine;
    try {
      ahead_.await(number, step);
    } catch (const std::exception& error) {
      if (cancel_ != nullptr && cancel_->cancelled()) throw;
      const std::string said = message_of(error), fault = said.empty() ? "unknown" : said;
      std::memcpy(mine.fault, fault.data(), std::min(fault.size(), sizeof mine.fault - 1));
    }
    std::vector<Status> all(static_cast<size_t>(channel_.size()));
    channel_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].fault[0] != '\0') {
        throw Error(fmt::format("rank {} could not read the data of step {}: {}", r, step + 1,
                                all[r].fault));
      }
    }
  }

  /// Learns which samples each rank computes, in its order. They are the same in every step.
  void learn_sequences() {
    const auto bytes = std::as_bytes(std::span(shape_.sequence));
    const std::string mine(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (const std::string& told : gather_bytes(mine, channel_)) {
      std::vector<MicroBatch> sequence(told.size() / sizeof(MicroBatch));
      std::memcpy(sequence.data(), told.data(), told.size());
      std::vector<int64_t>& samples = samples_.emplace_back();
      for (const MicroBatch& one : sequence) {
        const int64_t first = first_sample(shape_.batch, 0, one.lane, one.micro);
        for (int64_t i = 0; i < shape_.rows; ++i) samples.push_back(first + i);
      }
    }
  }

  /// For each owner, the rows read here that it computes, in its order.
  std::vector<std::vector<int64_t>> rows_for_owners(const Step& step) const {
    std::vector<int64_t> row_of(step.readers.size());
    int64_t rows = 0;
    for (size_t i = 0; i < row_of.size(); ++i)
      row_of[i] = step.readers[i] == channel_.rank() ? rows++ : -1;
    std::vector<std::vector<int64_t>> sent;
    for (const std::vector<int64_t>& samples : samples_) {
      sent.emplace_back();
      for (int64_t sample : samples)
        if (const int64_t row = row_of[static_cast<size_t>(sample)]; row >= 0)
          sent.back().push_back(row);
    }
    return sent;
  }

  /// The given rows of tensor k in one piece: where they are if they are consecutive, else
  /// in `buffer`.
  std::span<const std::byte> together(const Step& step, size_t k, const std::vector<int64_t>& rows,
                                      std::vector<std::byte>& buffer) const {
    if (rows.empty()) return {};
    const size_t bytes = row_bytes_[k];
    const auto gap = [](int64_t a, int64_t b) { return b != a + 1; };
    if (std::adjacent_find(rows.begin(), rows.end(), gap) == rows.end())
      return {row(step, k, rows.front()), rows.size() * bytes};
    buffer.resize(std::max(buffer.size(), rows.size() * bytes));
    for (size_t i = 0; i < rows.size(); ++i)
      std::memcpy(buffer.data() + i * bytes, row(step, k, rows[i]), bytes);
    return std::span(buffer).first(rows.size() * bytes);
  }

  /// Copies the rows of tensor k into this rank's micro-batches. from[r] is where those of reader r
  /// begin, and moves on as they are taken.
  void deal(const Step& step, const MicroBatches& micro_batches, size_t k,
            std::vector<const std::byte*>& from) {
    const size_t bytes = row_bytes_[k];
    const int64_t* sample = samples_[static_cast<size_t>(channel_.rank())].data();
    for (const std::vector<at::Tensor>& tensors : micro_batches) {
      auto* to = static_cast<std::byte*>(tensors[k].mutable_data_ptr());
      for (int64_t i = 0; i < shape_.rows; ++i, to += bytes) {
        const std::byte*& at =
            from[static_cast<size_t>(step.readers[static_cast<size_t>(*sample++)])];
        std::memcpy(to, at, bytes);
        at += bytes;
      }
    }
  }

  /// Digests per micro-batch, counted when it is handed out.
  void sum_digests(int64_t number, const Step& step) {
    digests_.assign(static_cast<size_t>(shape_.micro_batches), 0);
    const int64_t first = (shape_.first_step + number) * shape_.batch.samples();
    const std::vector<int64_t>& samples = samples_[static_cast<size_t>(channel_.rank())];
    for (size_t i = 0; i < samples.size(); ++i) {
      digests_[i / static_cast<size_t>(shape_.rows)] +=
          order_digest(static_cast<uint64_t>(first + samples[i]),
                       static_cast<uint64_t>(step.records[static_cast<size_t>(samples[i])]));
    }
  }

  const LoaderOptions options_;
  const FeedShape shape_;
  Channel& channel_;
  Clock& clock_;
  const Cancel* const cancel_;
  int64_t begun_ = -1;  // the last step whose rows were exchanged
  std::vector<Step> steps_;
  std::vector<std::vector<std::byte>> incoming_;  // by reader
  std::vector<std::vector<std::byte>> outgoing_;  // by owner
  // by owner: the samples of a step, counted from its first, in the owner's order
  std::vector<std::vector<int64_t>> samples_;
  // micro-batches of the step that is handed out and of those still held
  std::vector<MicroBatches> sets_;
  std::vector<size_t> row_bytes_;  // by tensor
  std::vector<uint64_t> digests_;  // by micro-batch
  std::atomic<uint64_t> digest_{0};
  std::atomic<int64_t> stalled_{0};
  ReadAhead ahead_;  // last, since its thread uses all of the above
};

}  // namespace

std::unique_ptr<Feed> make_exchanging_feed(LoaderOptions options, Clock& clock,
                                           const Cancel* cancel) {
  return std::make_unique<ExchangingFeed>(std::move(options), clock, cancel);
}

}  // namespace tutti
