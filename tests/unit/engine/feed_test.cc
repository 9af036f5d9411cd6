// Input on its way to a device: brought a step ahead or not, a step finds its own micro-batches
// where it always does, and what went wrong is told by the step that needs it.
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "engine/device/device_feed.h"
#include "grid/order.h"
#include "support/host_device.h"

namespace tutti {
namespace {

using testing_support::HostDevice;

/// Record i is the number i and its square; fails at the n-th read.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t fail_at) : fail_at_(fail_at) {}
  int64_t size() const override { return 1000; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    if (reads_.fetch_add(1) == fail_at_) throw Error("the disk is gone");
    tensors[0].mutable_data_ptr<int64_t>()[row] = record;
    tensors[1].mutable_data_ptr<float>()[row] = static_cast<float>(record * record);
  }

 private:
  int64_t fail_at_;
  mutable std::atomic<int64_t> reads_{0};
};

constexpr uint64_t kSeed = 23;
const Batch kBatch{.lanes = 4, .micro_batches = 2, .micro_batch_size = 3};
const Range kLanes{1, 3};
const int64_t kReads = 2 * 2 * 3;  // of a step

struct Case {
  explicit Case(int64_t fail_at = -1) {
    model.data = {{"number", {3}, at::kLong}, {"square", {3}}};
    LoaderOptions options;
    options.data = std::make_shared<Numbers>(fail_at);
    options.order = {.seed = kSeed, .n = 1000, .weights = nullptr};
    options.borders = model.data;
    options.batch = kBatch;
    options.sequence = lane_by_lane(kLanes, kBatch);
    loader = std::make_unique<Loader>(std::move(options), clock, nullptr);
    feed = std::make_unique<DeviceFeed>(model, lane_by_lane(kLanes, kBatch), *loader, device,
                                        at::kCPU, accounts);
    stream = device.make_stream();
  }
  SystemClock clock;
  HostDevice device;
  Accounts accounts;
  Model model;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<DeviceFeed> feed;
  Stream stream;
};

void expect_input_of(const Case& c, int64_t step) {
  for (int lane = 1; lane < 3; ++lane)
    for (int micro = 0; micro < 2; ++micro) {
      const auto& tensors = c.feed->tensors(lane, micro);
      ASSERT_EQ(tensors.size(), 2u);
      for (int row = 0; row < 3; ++row) {
        const auto position = static_cast<uint64_t>(first_sample(kBatch, step, lane, micro) + row);
        const auto record = static_cast<int64_t>(record_at(kSeed, position, 1000));
        EXPECT_EQ(tensors[0].const_data_ptr<int64_t>()[row], record) << "step " << step;
        EXPECT_EQ(tensors[1].const_data_ptr<float>()[row], static_cast<float>(record * record))
            << "step " << step;
      }
    }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(DeviceFeed, AStepFindsItsInputWhereItAlwaysIsBroughtAheadOrNot) {
  for (bool ahead : {false, true}) {
    Case c;
    const void* input = c.feed->tensors(2, 1)[1].const_data_ptr();
    for (int64_t step = 0; step < 7; ++step) {
      c.feed->use(step, c.stream);
      if (ahead) c.feed->bring(step + 1);
      expect_input_of(c, step);
      EXPECT_EQ(c.feed->tensors(2, 1)[1].const_data_ptr(), input);
    }
  }
}

TEST(DeviceFeed, TheDigestIsOfWhatWasUsedNotOfWhatIsBroughtAhead) {
  Case plain, ahead;
  for (int64_t step = 0; step < 5; ++step) {
    plain.feed->use(step, plain.stream);
    ahead.feed->use(step, ahead.stream);
    ahead.feed->bring(step + 1);
    EXPECT_EQ(ahead.feed->digest(), plain.feed->digest()) << "step " << step;
    EXPECT_EQ(plain.feed->digest(), plain.loader->digest()) << "step " << step;
    EXPECT_NE(ahead.feed->digest(), ahead.loader->digest()) << "the loader is a step ahead";
  }
}

TEST(DeviceFeed, WhatIsPlacedBehindAStepIsThereForTheNextAndCountsOnceThatUsesIt) {
  Case plain, c(3 * kReads);
  c.feed->use(0, c.stream);
  for (int64_t step = 0; step < 2; ++step) {
    plain.feed->use(step, plain.stream);
    EXPECT_NO_THROW(c.feed->fill_input(step + 1, c.stream));
    expect_input_of(c, step + 1);
    EXPECT_EQ(c.feed->digest(), plain.feed->digest()) << "step " << step + 1 << " was not used yet";
    c.feed->use(step + 1, c.stream);
    expect_input_of(c, step + 1);
    EXPECT_NE(c.feed->digest(), plain.feed->digest());
  }
  EXPECT_NO_THROW(c.feed->fill_input(3, c.stream)) << "what could not be read is told by its step";
  EXPECT_NE(message_of([&] { c.feed->use(3, c.stream); }).find("the disk is gone"),
            std::string::npos);
}

TEST(DeviceFeed, TakesNothingOfTheDeviceOnceItIsMade) {
  Case c;
  const int64_t takes = c.device.takes();
  for (int64_t step = 0; step < 4; ++step) {
    c.feed->use(step, c.stream);
    c.feed->bring(step + 1);
  }
  EXPECT_EQ(c.device.takes(), takes);
  EXPECT_EQ(c.device.synchronisations(), 0);
  EXPECT_EQ(c.device.held_bytes(), 3 * (256 + 256) * 4)
      << "two tensors of four micro-batches, three times";
  EXPECT_EQ(c.accounts.current(BufferKind::kData), c.device.held_bytes());
  c.feed.reset();
  EXPECT_EQ(c.device.held_bytes(), 0);
}

TEST(DeviceFeed, WhatReadingThrowsIsThrownByTheStepThatNeedsIt) {
  for (bool ahead : {false, true}) {
    Case c(2 * kReads + 5);  // in the middle of step 2
    for (int64_t step = 0; step < 2; ++step) {
      c.feed->use(step, c.stream);
      if (ahead) EXPECT_NO_THROW(c.feed->bring(step + 1));
      expect_input_of(c, step);
    }
    const uint64_t digest = c.feed->digest();
    for (int again = 0; again < 2; ++again)
      EXPECT_NE(message_of([&] { c.feed->use(2, c.stream); }).find("the disk is gone"),
                std::string::npos);
    EXPECT_EQ(c.feed->digest(), digest) << "nothing of the step was used";
    expect_input_of(c, 1);
  }
}

TEST(DeviceFeed, WhatTheModelsCheckThrowsIsThrownByTheStepThatNeedsIt) {
  Case c;
  int checked = 0;
  c.model.check = [&](Tensors) {
    // the first micro-batch of step 1
    if (checked++ == 4) throw Error("token 300 is out of range");
  };
  c.feed->use(0, c.stream);
  EXPECT_NO_THROW(c.feed->bring(1));
  expect_input_of(c, 0);
  EXPECT_EQ(message_of([&] { c.feed->use(1, c.stream); }), "token 300 is out of range");
}

}  // namespace
}  // namespace tutti
