// Loaders of ranks that read by a partition: whoever reads, every rank gets what a loader that
// reads all by itself does.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <deque>
#include <mutex>

#include "base/error.h"
#include "data/load/loader.h"
#include "support/transports.h"

namespace tutti {
namespace {

using testing_support::TestRank;

constexpr uint64_t kSeed = 5;
constexpr int64_t kSteps = 4;
const Batch kBatch{.lanes = 4, .micro_batches = 2, .micro_batch_size = 3};
const testing_support::TransportCase kThreads{"inproc", "inproc", true, false};

/// Record i: an image of 4 numbers that name it, and the class i % 5. Counts who reads what.
class Records final : public Dataset {
 public:
  explicit Records(int64_t size, int64_t broken = -1)
      : reads_(static_cast<size_t>(size)), broken_(broken) {}
  int64_t size() const override { return static_cast<int64_t>(reads_.size()); }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    if (record == broken_) throw Error(fmt::format("images.idx: record {} is torn", record));
    for (int i = 0; i < 4; ++i)
      tensors[0].mutable_data_ptr<float>()[row * 4 + i] = static_cast<float>(record * 4 + i);
    tensors[1].mutable_data_ptr<int64_t>()[row] = label(record);
    ++reads_[static_cast<size_t>(record)];
  }
  int64_t label(int64_t record) const override { return record % 5; }
  uint64_t feature(int64_t record, const std::string& column) const override {
    if (column != "site") return Dataset::feature(record, column);
    return static_cast<uint64_t>(record / 7);
  }
  const std::vector<int>& reads() const { return reads_; }

 private:
  mutable std::vector<int> reads_;  // each rank of a test has records of its own
  int64_t broken_;
};

std::vector<Border> borders(bool mixup) {
  std::vector<Border> made = {{"images", {3, 1, 2, 2}, at::kFloat}, {"targets", {3}, at::kLong}};
  if (mixup) {
    made.push_back({"other_targets", {3}, at::kLong});
    made.push_back({"mix", {3}, at::kFloat});
  }
  return made;
}

LoaderOptions options_of(const std::shared_ptr<const Dataset>& data, Range lanes, bool augmented) {
  LoaderOptions options;
  options.order = {.seed = kSeed, .n = static_cast<uint64_t>(data->size()), .weights = nullptr};
  options.data = data;
  options.borders = borders(augmented);
  options.batch = kBatch;
  options.sequence = lane_by_lane(lanes, kBatch);
  options.first_step = 3;
  if (augmented) {
    AugmentConfig config{};
    config.flip = 0.5;
    config.noise = 0.1;
    config.mixup = 0.4;
    options.augment = std::make_shared<Augment>(config, std::vector<int64_t>{1, 2, 2}, kSeed);
  }
  return options;
}

/// Copies of all tensors that a loader hands out, micro-batch by micro-batch.
std::vector<std::vector<at::Tensor>> all_of(Loader& loader, Range lanes) {
  std::vector<std::vector<at::Tensor>> all;
  for (int64_t step = 3; step < 3 + kSteps; ++step) {
    for (auto lane = static_cast<int>(lanes.begin); lane < lanes.end; ++lane) {
      for (int micro = 0; micro < kBatch.micro_batches; ++micro) {
        std::vector<at::Tensor> copies;
        for (const at::Tensor& tensor : loader.next(step, lane, micro))
          copies.push_back(tensor.clone());
        all.push_back(std::move(copies));
      }
    }
  }
  return all;
}

struct Way {
  std::string partition, by;
};
const std::vector<Way> kWays = {{"even", ""},         {"round-robin", ""}, {"hash", ""},
                                {"feature", "class"}, {"feature", "site"}, {"own", ""}};

Partition partition_of(const Way& way, const std::shared_ptr<const Dataset>& data, int ranks) {
  LayoutConfig layout{};
  layout.partition = value_named<PartitionKind>(way.partition).value();
  layout.partition_by = way.by;
  // The last rank reads everything: the others only receive.
  return make_partition(layout, data, ranks, [](const Dataset&, int64_t, int n) { return n - 1; });
}

TEST(Exchange, EveryPartitionOverAnyRanksGivesTheTensorsAndDigestOfReadingAlone) {
  for (const bool augmented : {false, true}) {
    for (const Way& way : kWays) {
      for (const int ranks : {1, 2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} {} over {} ranks, augmented {}", way.partition, way.by, ranks,
                                 augmented));
        std::mutex mutex;
        uint64_t digests = 0;
        testing_support::over(kThreads, ranks, [&](TestRank& me) {
          const auto data = std::make_shared<Records>(61);
          const Range lanes = lanes_of(me.rank, ranks, kBatch.lanes);
          Loader alone(options_of(std::make_shared<Records>(61), lanes, augmented), me.clock,
                       nullptr);
          Channel channel(me.transport, me.clock, {0, 15}, std::chrono::seconds(20));
          LoaderOptions options = options_of(data, lanes, augmented);
          options.partition = partition_of(way, data, ranks);
          options.channel = &channel;
          const Partition partition = options.partition;
          Loader loader(std::move(options), me.clock, nullptr);
          const auto expected = all_of(alone, lanes), got = all_of(loader, lanes);
          for (size_t i = 0; i < expected.size(); ++i) {
            for (size_t k = 0; k < expected[i].size(); ++k) {
              EXPECT_TRUE(at::equal(got[i][k], expected[i][k]))
                  << "micro-batch " << i << " tensor " << k;
            }
          }
          EXPECT_EQ(loader.digest(), alone.digest());
          for (int64_t record = 0; ranks > 1 && record < 61; ++record) {
            if (data->reads()[static_cast<size_t>(record)] > 0)
              EXPECT_EQ(partition(record), me.rank);
          }
          const std::lock_guard lock(mutex);
          digests += loader.digest();
        });
        uint64_t expected = 0;
        for (auto p = static_cast<uint64_t>(3 * kBatch.samples());
             p < static_cast<uint64_t>((3 + kSteps) * kBatch.samples()); ++p) {
          expected += order_digest(p, record_at(kSeed, p, 61));
        }
        EXPECT_EQ(digests, expected);
      }
    }
  }
}

TEST(Exchange, RanksOfAMeshGetTheirSequencesThoughSomeShareThemAndKeepWhatIsInFlight) {
  constexpr int kRanks = 4, kInFlight = 7;
  for (const bool micro : {false, true}) {
    for (const Way& way : kWays) {
      SCOPED_TRACE(fmt::format("{} {}, order by micro {}", way.partition, way.by, micro));
      testing_support::over(kThreads, kRanks, [&](TestRank& me) {
        const auto data = std::make_shared<Records>(61);
        // Two data ranks of round-robin lanes, each of two stages.
        const auto sequence =
            sequence_of({.batch = kBatch, .ranks = 2, .owner = true, .micro = micro}, me.rank % 2);
        Channel channel(me.transport, me.clock, {0, 15}, std::chrono::seconds(20));
        LoaderOptions options = options_of(data, {}, false);
        options.sequence = sequence;
        Loader alone(options, me.clock, nullptr);
        options.partition = partition_of(way, data, kRanks);
        options.channel = &channel;
        options.in_flight = kInFlight;
        Loader loader(std::move(options), me.clock, nullptr);
        // what was given, a copy
        std::deque<std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> held;
        for (int64_t step = 3; step < 3 + kSteps; ++step)
          for (const auto& [lane, micro_batch] : sequence) {
            std::vector<at::Tensor> copies;
            for (const at::Tensor& tensor : alone.next(step, lane, micro_batch))
              copies.push_back(tensor.clone());
            held.emplace_back(loader.next(step, lane, micro_batch), std::move(copies));
            if (held.size() > kInFlight) held.pop_front();
            for (const auto& [given, expected] : held)
              for (size_t k = 0; k < given.size(); ++k)
                ASSERT_TRUE(at::equal(given[k], expected[k])) << k;
          }
        EXPECT_EQ(loader.digest(), alone.digest());
      });
    }
  }
}

TEST(Exchange, WhatOneReaderThrowsEveryRankThrowsNamingIt) {
  constexpr int kRanks = 3;
  std::vector<std::string> errors(kRanks);
  testing_support::over(kThreads, kRanks, [&](TestRank& me) {
    const auto data = std::make_shared<Records>(61, 30);  // of the middle third: rank 1's
    const Range lanes = lanes_of(me.rank, kRanks, kBatch.lanes);
    Channel channel(me.transport, me.clock, {0, 15}, std::chrono::seconds(20));
    LoaderOptions options = options_of(data, lanes, false);
    options.partition = partition_of({"even", ""}, data, kRanks);
    options.channel = &channel;
    Loader loader(std::move(options), me.clock, nullptr);
    try {
      all_of(loader, lanes);
    } catch (const Error& error) {
      errors[static_cast<size_t>(me.rank)] = error.what();
    }
  });
  EXPECT_NE(errors[0].find("rank 1 could not read the data of step 5:"), std::string::npos)
      << errors[0];
  EXPECT_NE(errors[0].find("images.idx: record 30 is torn"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
}

TEST(Exchange, APartitionThatNamesARankThereIsNotIsAnErrorOnEveryRank) {
  testing_support::over(kThreads, 2, [&](TestRank& me) {
    const auto data = std::make_shared<Records>(61);
    Channel channel(me.transport, me.clock, {0, 15}, std::chrono::seconds(20));
    LoaderOptions options = options_of(data, lanes_of(me.rank, 2, kBatch.lanes), false);
    options.partition = [](int64_t record) { return record == 17 ? 2 : 0; };
    options.channel = &channel;
    Loader loader(std::move(options), me.clock, nullptr);
    try {
      all_of(loader, lanes_of(me.rank, 2, kBatch.lanes));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("record 17 to rank 2 of 2"), std::string::npos)
          << error.what();
    }
  });
}

TEST(Exchange, ACancelEndsTheWaitForRanksThatDoNotCome) {
  Cancel cancel;
  testing_support::expect_all_well(
      true, 2,
      testing_support::with_transport(
          testing_support::options_for(kThreads, 2),
          [&](TestRank& me) {
            const auto data = std::make_shared<Records>(61);
            const Range lanes = lanes_of(me.rank, 2, kBatch.lanes);
            Channel channel(me.transport, me.clock, {0, 15}, std::chrono::seconds(60));
            LoaderOptions options = options_of(data, lanes, false);
            options.partition = partition_of({"hash", ""}, data, 2);
            options.channel = &channel;
            Loader loader(std::move(options), me.clock, &cancel);
            if (me.rank == 1) {
              cancel.cancel("rank 1 was killed");
              return;
            }
            try {
              loader.next(3, 0, 0);
              ADD_FAILURE() << "no error";
            } catch (const Error& error) {
              EXPECT_NE(std::string(error.what()).find("rank 1 was killed"), std::string::npos)
                  << error.what();
            }
          },
          &cancel));
}

TEST(Exchange, ARankThatLeavesEndsTheWaitForIt) {
  testing_support::over(kThreads, 2, [&](TestRank& me) {
    const auto data = std::make_shared<Records>(61);
    const Range lanes = lanes_of(me.rank, 2, kBatch.lanes);
    // silence, not luck, ends it
    Channel channel(me.transport, me.clock, {0, 15}, std::chrono::milliseconds(200));
    LoaderOptions options = options_of(data, lanes, false);
    options.partition = partition_of({"hash", ""}, data, 2);
    options.channel = &channel;
    Loader loader(std::move(options), me.clock, nullptr);
    if (me.rank == 0) EXPECT_THROW(loader.next(3, 0, 0), CommError);
  });
}

}  // namespace
}  // namespace tutti
