#include "data/load/loader.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "base/error.h"
#include "grid/order.h"

namespace tutti {
namespace {

/// Record i is the number i; counts its reads and fails at one of them.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t size, int64_t fail_at = -1) : size_(size), fail_at_(fail_at) {}
  int64_t size() const override { return size_; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    if (reads_.fetch_add(1) == fail_at_) throw Error("the disk is gone");
    tensors[0].mutable_data_ptr<int64_t>()[row] = record;
  }
  int64_t reads() const { return reads_.load(); }

 private:
  int64_t size_, fail_at_;
  mutable std::atomic<int64_t> reads_{0};
};

constexpr uint64_t kSeed = 17;
const Batch kBatch{.lanes = 4, .micro_batches = 2, .micro_batch_size = 3};
const std::vector<Border> kBorders = {{"number", {3}, at::kLong}};

LoaderOptions options_of(std::shared_ptr<const Dataset> data, Range lanes, int64_t first_step,
                         int depth) {
  LoaderOptions options;
  options.order = {.seed = kSeed, .n = static_cast<uint64_t>(data->size()), .weights = nullptr};
  options.data = std::move(data);
  options.borders = kBorders;
  options.batch = kBatch;
  options.sequence = lane_by_lane(lanes, kBatch);
  options.first_step = first_step;
  options.depth = depth;
  return options;
}

std::vector<int64_t> expected(int64_t step, int lane, int micro, int64_t size) {
  std::vector<int64_t> records;
  for (int row = 0; row < kBatch.micro_batch_size; ++row) {
    const auto position = static_cast<uint64_t>(first_sample(kBatch, step, lane, micro) + row);
    records.push_back(
        static_cast<int64_t>(record_at(kSeed, position, static_cast<uint64_t>(size))));
  }
  return records;
}

std::vector<int64_t> values(const std::vector<at::Tensor>& tensors) {
  const auto* begin = tensors[0].const_data_ptr<int64_t>();
  return {begin, begin + 3};
}

TEST(Loader, HandsOutTheRecordsOfItsLanesInPlanOrderFromAnyStep) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(50);  // two passes and more over the data
  for (int64_t first_step : {0, 5}) {
    for (int depth : {1, 3, 16}) {
      Loader loader(options_of(data, {1, 3}, first_step, depth), clock, nullptr);
      for (int64_t step = first_step; step < first_step + 10; ++step) {
        for (int lane = 1; lane < 3; ++lane) {
          for (int micro = 0; micro < 2; ++micro) {
            ASSERT_EQ(values(loader.next(step, lane, micro)), expected(step, lane, micro, 50));
          }
        }
      }
    }
  }
}

TEST(Loader, HandsOutAnySequenceOfMicroBatches) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(50);
  const std::vector<std::vector<MicroBatch>> sequences = {{{0, 0}, {2, 0}, {0, 1}, {2, 1}},
                                                          {{3, 1}},
                                                          {{3, 1}, {0, 0}, {0, 1}, {1, 0}, {3, 0}},
                                                          {{1, 1}, {2, 0}}};
  for (const auto& sequence : sequences) {
    LoaderOptions options = options_of(data, {}, 3, 2);
    options.sequence = sequence;
    Loader loader(std::move(options), clock, nullptr);
    for (int64_t step = 3; step < 10; ++step)
      for (const auto& [lane, micro] : sequence)
        ASSERT_EQ(values(loader.next(step, lane, micro)), expected(step, lane, micro, 50));
  }
}

TEST(Loader, LeavesAsManyMicroBatchesAloneAsAreInFlight) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(1000);
  LoaderOptions options = options_of(data, {0, 4}, 0, 2);
  options.in_flight = 3;
  Loader loader(std::move(options), clock, nullptr);
  const auto &first = loader.next(0, 0, 0), &second = loader.next(0, 0, 1),
             &third = loader.next(0, 1, 0);
  Signal never;
  // Held 3 + ready 2 micro-batches of 3 records.
  ASSERT_EQ(clock.wait(
                never, [&] { return data->reads() >= 15; }, clock.after(std::chrono::seconds(20)),
                nullptr),
            WaitResult::kReady);
  EXPECT_EQ(clock.wait(
                never, [&] { return data->reads() > 15; },
                clock.after(std::chrono::milliseconds(30)), nullptr),
            WaitResult::kTimedOut);
  EXPECT_EQ(values(first), expected(0, 0, 0, 1000));
  EXPECT_EQ(values(second), expected(0, 0, 1, 1000));
  EXPECT_EQ(values(third), expected(0, 1, 0, 1000));
}

TEST(Loader, ReadsAheadByItsDepthAndNoFurtherAndLeavesTheHeldMicroBatchAlone) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(1000);
  Loader loader(options_of(data, {0, 4}, 0, 2), clock, nullptr);
  const auto& held = loader.next(0, 0, 0);
  Signal never;
  // Held 1 + ready 2 = 3 micro-batches of 3 records; the reader then has to wait for next().
  ASSERT_EQ(clock.wait(
                never, [&] { return data->reads() >= 9; }, clock.after(std::chrono::seconds(20)),
                nullptr),
            WaitResult::kReady);
  EXPECT_EQ(clock.wait(
                never, [&] { return data->reads() > 9; },
                clock.after(std::chrono::milliseconds(30)), nullptr),
            WaitResult::kTimedOut);
  EXPECT_EQ(values(held), expected(0, 0, 0, 1000));
}

TEST(Loader, AReaderThatIsReadyDoesNotStallNext) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(1000);
  Loader loader(options_of(data, {0, 4}, 0, 4), clock, nullptr);
  Signal never;
  for (int micro = 0; micro < 8; ++micro) {
    const int64_t ready = 3 * (micro + 1);
    // One record past the micro-batch has been begun, so the micro-batch has been handed over.
    ASSERT_EQ(clock.wait(
                  never, [&] { return data->reads() > ready; },
                  clock.after(std::chrono::seconds(20)), nullptr),
              WaitResult::kReady);
    loader.next(0, micro / 2, micro % 2);
  }
  EXPECT_EQ(loader.stalled(), Duration(0));
}

TEST(Loader, WhatReadingThrowsIsThrownByNextAfterTheWholeMicroBatches) {
  SystemClock clock;
  Loader loader(options_of(std::make_shared<Numbers>(1000, 7), {0, 4}, 0, 4), clock, nullptr);
  EXPECT_EQ(values(loader.next(0, 0, 0)), expected(0, 0, 0, 1000));
  EXPECT_EQ(values(loader.next(0, 0, 1)), expected(0, 0, 1, 1000));
  try {
    loader.next(0, 1, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the disk is gone");
  }
}

/// Blocks its reader until told, as a slow disk would.
class Gated final : public Dataset {
 public:
  Gated(Clock& clock, const Cancel& gate) : clock_(clock), gate_(gate) {}
  int64_t size() const override { return 10; }
  void read(int64_t, std::span<const at::Tensor>, int64_t) const override {
    Signal never;
    clock_.wait(
        never, [] { return false; }, Deadline::never(), &gate_);
  }

 private:
  Clock& clock_;
  const Cancel& gate_;
};

TEST(Loader, ACancelEndsAWaitForDataWithItsReason) {
  SystemClock clock;
  Cancel cancel, gate;
  Loader loader(options_of(std::make_shared<Gated>(clock, gate), {0, 4}, 0, 2), clock, &cancel);
  cancel.cancel("rank 1 was killed");
  try {
    loader.next(0, 0, 0);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 was killed"), std::string::npos)
        << error.what();
  }
  EXPECT_GT(loader.stalled(), Duration(0));
  gate.cancel("open");
}

TEST(Loader, DataWithoutRecordsIsRefused) {
  SystemClock clock;
  EXPECT_THROW(Loader(options_of(std::make_shared<Numbers>(0), {0, 4}, 0, 2), clock, nullptr),
               Error);
}

TEST(Loader, TheDigestsOfAnyLayoutAddUpToThoseOfTheSamplesHandedOut) {
  SystemClock clock;
  auto data = std::make_shared<Numbers>(50);
  const auto digest_of = [&](Range lanes) {
    Loader loader(options_of(data, lanes, 7, 4), clock, nullptr);
    for (int64_t step = 7; step < 12; ++step) {
      for (auto lane = static_cast<int>(lanes.begin); lane < lanes.end; ++lane) {
        for (int micro = 0; micro < 2; ++micro) loader.next(step, lane, micro);
      }
    }
    return loader.digest();
  };
  uint64_t expected = 0;
  for (auto position = static_cast<uint64_t>(7 * kBatch.samples());
       position < static_cast<uint64_t>(12 * kBatch.samples()); ++position) {
    expected += order_digest(position, record_at(kSeed, position, 50));
  }
  EXPECT_EQ(digest_of({0, 4}), expected);
  EXPECT_EQ(digest_of({0, 1}) + digest_of({1, 4}), expected);
}

TEST(Loader, TheDigestCountsOnlyWhatWasHandedOut) {
  SystemClock clock;
  Loader loader(options_of(std::make_shared<Numbers>(50), {0, 4}, 0, 4), clock, nullptr);
  EXPECT_EQ(loader.digest(), 0u);
  loader.next(0, 0, 0);
  uint64_t expected = 0;
  for (uint64_t position = 0; position < 3; ++position)
    expected += order_digest(position, record_at(kSeed, position, 50));
  EXPECT_EQ(loader.digest(), expected);
}

TEST(Loader, DrawsRecordsByWeightWhereTheOrderSaysSo) {
  SystemClock clock;
  LoaderOptions options = options_of(std::make_shared<Numbers>(50), {0, 4}, 3, 2);
  std::vector<double> weights(50);
  weights[7] = 1;
  weights[9] = 1;
  options.order.weights = std::make_shared<Alias>(weights);
  const Order order = options.order;
  Loader loader(std::move(options), clock, nullptr);
  std::set<int64_t> seen;
  for (int micro = 0; micro < 8; ++micro) {
    const std::vector<int64_t> got = values(loader.next(3, micro / 2, micro % 2));
    for (int64_t row = 0; row < 3; ++row) {
      const auto position =
          static_cast<uint64_t>(first_sample(kBatch, 3, micro / 2, micro % 2) + row);
      EXPECT_EQ(static_cast<uint64_t>(got[static_cast<size_t>(row)]), order.record(position));
      seen.insert(got[static_cast<size_t>(row)]);
    }
  }
  EXPECT_EQ(seen, (std::set<int64_t>{7, 9}));
}

/// Record i is an image of the number i.
class Pictures final : public Dataset {
 public:
  int64_t size() const override { return 40; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    tensors[0][row].fill_(static_cast<double>(record));
    tensors[1][row].fill_(record);
  }
};

TEST(Loader, AugmentsEverySampleByItsPositionInTheOrder) {
  SystemClock clock;
  AugmentConfig config{};
  config.crop = 2;
  config.noise = 0.5;
  const auto augment = std::make_shared<Augment>(config, std::vector<int64_t>{1, 4, 4}, 5);
  LoaderOptions options = options_of(std::make_shared<Pictures>(), {2, 3}, 4, 2);
  options.borders = {{"images", {3, 1, 4, 4}, at::kFloat}, {"targets", {3}, at::kLong}};
  options.augment = augment;
  const auto borders = options.borders;
  Loader loader(std::move(options), clock, nullptr);
  for (int micro = 0; micro < 2; ++micro) {
    std::vector<at::Tensor> expected = allocate(borders);
    const int64_t first = first_sample(kBatch, 4, 2, micro);
    for (int64_t row = 0; row < 3; ++row) {
      const uint64_t record = record_at(kSeed, static_cast<uint64_t>(first + row), 40);
      Pictures().read(static_cast<int64_t>(record), expected, row);
    }
    augment->apply(expected, first);
    const auto& got = loader.next(4, 2, micro);
    EXPECT_TRUE(at::equal(got[0], expected[0]));
    EXPECT_TRUE(at::equal(got[1], expected[1]));
  }
}

TEST(LoaderDeathTest, AMicroBatchOutOfOrderIsABrokenPromise) {
  SystemClock clock;
  Loader loader(options_of(std::make_shared<Numbers>(10), {0, 4}, 0, 2), clock, nullptr);
  EXPECT_DEATH(loader.next(0, 1, 0), "lane 1, micro 0.*asked for.*lane 0, micro 0.*is next");
}

}  // namespace
}  // namespace tutti
