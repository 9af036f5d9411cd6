// A resident loader for interleaved benchmarks: `tutti-bench-data` reads lines
//   rows      2 KB records, uint8, in memory, by the keyed order through a Loader; answers {"rate":
//             records/s}
//   gather    a plain loop that copies random records of the same array into batches; the same
//   fashion   Fashion-MNIST with crop, flip and normalisation through a Loader; the same
//   resume    answers {"seconds": from making a Loader at sample 10^9 to its first micro-batch}
// and sleeps in between. The data of a line is opened when it is first asked for.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>

#include "app/train_command.h"
#include "base/error.h"
#include "data/images/arrays.h"
#include "data/load/loader.h"
#include "model/core/data_borders.h"

namespace tutti {
namespace {

constexpr int64_t kRecord = 2048, kRecords = 262144, kBatchSize = 256;
constexpr double kSeconds = 0.6;  // of one measurement
constexpr int64_t kWarm = 64, kLook = 16;

double seconds_since(Time begin, Clock& clock) {
  return std::chrono::duration<double>(clock.now() - begin).count();
}

LoaderOptions whole(std::shared_ptr<const Dataset> data, std::vector<Border> borders) {
  LoaderOptions options;
  options.order = {.seed = 1, .n = static_cast<uint64_t>(data->size()), .weights = nullptr};
  options.data = std::move(data);
  options.borders = std::move(borders);
  options.batch = {.lanes = 1, .micro_batches = 1, .micro_batch_size = kBatchSize};
  options.sequence = {{0, 0}};
  return options;
}

/// Records a second that next() hands out once the loader runs.
double rate_of(const LoaderOptions& options, Clock& clock) {
  Loader loader(options, clock, nullptr);
  int64_t step = options.first_step;
  for (int64_t i = 0; i < kWarm; ++i) loader.next(step++, 0, 0);
  const Time begin = clock.now();
  int64_t batches = 0;
  double seconds = 0;
  while (seconds < kSeconds) {
    for (int64_t i = 0; i < kLook; ++i) loader.next(step++, 0, 0);
    batches += kLook;
    seconds = seconds_since(begin, clock);
  }
  return static_cast<double>(batches * kBatchSize) / seconds;
}

/// What C reaches on one core: a random number per record, then memcpy.
double gather_rate(const std::vector<uint8_t>& records, Clock& clock) {
  std::vector<uint8_t> batch(kBatchSize * kRecord);
  uint64_t state = 88172645463325252u, sink = 0;
  const Time begin = clock.now();
  int64_t batches = 0;
  double seconds = 0;
  while (seconds < kSeconds) {
    for (int64_t i = 0; i < kLook; ++i) {
      for (int64_t row = 0; row < kBatchSize; ++row) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(batch.data() + row * kRecord, records.data() + state % kRecords * kRecord,
                    kRecord);
      }
      sink += batch[state % batch.size()];
    }
    batches += kLook;
    seconds = seconds_since(begin, clock);
  }
  if (sink == 1) fmt::print(" ");
  return static_cast<double>(batches * kBatchSize) / seconds;
}

class Bench {
 public:
  double rows() { return rate_of(row_options(0), clock_); }
  double gather() { return gather_rate(std::get<std::vector<uint8_t>>(records().values), clock_); }
  double fashion() {
    if (!fashion_) fashion_ = fashion_options();
    return rate_of(*fashion_, clock_);
  }
  double resume() {
    const LoaderOptions options = row_options(1'000'000'000 / kBatchSize);
    const Time begin = clock_.now();
    Loader loader(options, clock_, nullptr);
    loader.next(options.first_step, 0, 0);
    return seconds_since(begin, clock_);
  }

 private:
  const Array& records() {
    if (!records_) {
      std::vector<uint8_t> values(kRecords * kRecord);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
      records_ = std::make_shared<Array>(Array{"memory", {kRecords, kRecord}, std::move(values)});
      rows_ = make_arrays(records_, nullptr, {Scaling{}});
    }
    return *records_;
  }
  LoaderOptions row_options(int64_t first_step) {
    records();
    LoaderOptions options = whole(rows_, {{"bytes", {kBatchSize, kRecord}, at::kByte}});
    options.first_step = first_step;
    return options;
  }
  static LoaderOptions fashion_options() {
    TrainArguments arguments;
    arguments.job = "fashion-mlp";
    arguments.set = {"data.held_out=0",        "train.eval_batches=0",       "train.eval_every=0",
                     "data.scale=standardise", "train.micro_batch_size=256", "augment.crop=2",
                     "augment.flip=0.5"};
    const Job job = job_of(arguments);
    LoaderOptions options = whole(open_data(job).train, data_borders(job));
    options.augment =
        std::make_shared<Augment>(job.augment, std::vector<int64_t>{1, 28, 28}, job.train.seed);
    return options;
  }

  SystemClock clock_;
  std::shared_ptr<const Array> records_;
  std::shared_ptr<const Dataset> rows_;
  std::optional<LoaderOptions> fashion_;
};

}  // namespace
}  // namespace tutti

int main() {
  using namespace tutti;
  try {
    Bench bench;
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "resume") {
        fmt::print("{{\"seconds\": {}}}\n", bench.resume());
      } else if (line == "rows" || line == "gather" || line == "fashion") {
        const double rate = line == "rows"     ? bench.rows()
                            : line == "gather" ? bench.gather()
                                               : bench.fashion();
        fmt::print("{{\"rate\": {}}}\n", rate);
      } else {
        throw Error(fmt::format("\"{}\": known are rows, gather, fashion and resume", line));
      }
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "tutti-bench-data: {}\n", e.what());
    return 1;
  }
}
