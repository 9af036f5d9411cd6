#include "data/load/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tutti {
namespace {

/// Class i % classes (none: -1), and a column "site" of ten values.
class Records final : public Dataset {
 public:
  explicit Records(int64_t size, int64_t classes = 4) : size_(size), classes_(classes) {}
  int64_t size() const override { return size_; }
  void read(int64_t, std::span<const at::Tensor>, int64_t) const override {}
  int64_t label(int64_t record) const override { return classes_ == 0 ? -1 : record % classes_; }
  uint64_t feature(int64_t record, const std::string& column) const override {
    if (column != "site") return Dataset::feature(record, column);
    return static_cast<uint64_t>(record % 10);
  }

 private:
  int64_t size_, classes_;
};

Partition make(const std::string& kind, const std::shared_ptr<const Dataset>& data, int ranks,
               const std::string& by = "class") {
  LayoutConfig layout{};
  layout.partition = value_named<PartitionKind>(kind).value();
  layout.partition_by = by;
  return make_partition(layout, data, ranks);
}

std::vector<int> ranks_of(const Partition& partition, int64_t n) {
  std::vector<int> ranks;
  for (int64_t i = 0; i < n; ++i) ranks.push_back(partition(i));
  return ranks;
}

TEST(Partition, LanesIsNone) { EXPECT_FALSE(make("lanes", std::make_shared<Records>(10), 2)); }

TEST(Partition, EvenCutsTheRecordsIntoRangesThatDifferByOneAtMost) {
  EXPECT_EQ(ranks_of(make("even", std::make_shared<Records>(10), 2), 10),
            (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(ranks_of(make("even", std::make_shared<Records>(7), 3), 7),
            (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
  for (int64_t n : {1, 2, 5, 64, 100}) {
    for (int ranks : {1, 2, 3, 7, 64}) {
      const std::vector<int> of = ranks_of(make("even", std::make_shared<Records>(n), ranks), n);
      EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
      for (int r = 0; r < ranks; ++r) {
        EXPECT_LE(std::abs(std::count(of.begin(), of.end(), r) - static_cast<double>(n) / ranks),
                  1);
      }
    }
  }
}

TEST(Partition, EvenWorksAtSizesWhoseProductNeedsMoreThanSixtyFourBits) {
  const int64_t n = INT64_MAX;
  const Partition partition = make("even", std::make_shared<Records>(n), 1000);
  EXPECT_EQ(partition(0), 0);
  EXPECT_EQ(partition(n - 1), 999);
  EXPECT_EQ(partition(n / 2), 499);
  EXPECT_EQ(partition(n / 2 + 1), 500);
  const Partition generated = make("even", std::make_shared<Records>(int64_t{1} << 40), 4);
  EXPECT_EQ(generated((int64_t{1} << 38) - 1), 0);
  EXPECT_EQ(generated(int64_t{1} << 38), 1);
}

TEST(Partition, RoundRobinDealsRecordByRecord) {
  EXPECT_EQ(ranks_of(make("round-robin", std::make_shared<Records>(7), 3), 7),
            (std::vector<int>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(Partition, HashSpreadsNeighboursAndStridesAlike) {
  const Partition partition = make("hash", std::make_shared<Records>(1 << 20), 8);
  for (int64_t stride : {1, 8, 4096}) {
    std::vector<int> counts(8);
    for (int64_t i = 0; i < 8000; ++i) ++counts[static_cast<size_t>(partition(i * stride))];
    // five standard deviations
    for (const int count : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(875.0));
  }
}

TEST(Partition, AFeatureKeepsEqualValuesOnOneRank) {
  const auto data = std::make_shared<Records>(1000);
  for (const auto& [by, period] : {std::pair<std::string, int64_t>{"class", 4}, {"site", 10}}) {
    const Partition partition = make("feature", data, 3, by);
    for (int64_t i = 0; i + period < 1000; ++i)
      ASSERT_EQ(partition(i), partition(i + period)) << by;
  }
  const std::vector<int> sites = ranks_of(make("feature", data, 3, "site"), 10);
  EXPECT_GT(*std::max_element(sites.begin(), sites.end()),
            *std::min_element(sites.begin(), sites.end()));
}

TEST(Partition, WhatTheDataDoesNotHaveIsRefusedBeforeTheRun) {
  EXPECT_THROW(make("feature", std::make_shared<Records>(10), 2, "colour"), Error);
  EXPECT_THROW(make("feature", std::make_shared<Records>(10, 0), 2, "class"), Error);
  EXPECT_THROW(make("own", std::make_shared<Records>(10), 2), Error);
}

TEST(Partition, AProgramsOwnFunctionIsCheckedRecordByRecord) {
  LayoutConfig layout{};
  layout.partition = PartitionKind::kOwn;
  const Partition partition = make_partition(
      layout, std::make_shared<Records>(10), 2, [](const Dataset& data, int64_t record, int ranks) {
        return record == data.size() - 1 ? ranks : static_cast<int>(record % 2);
      });
  EXPECT_EQ(partition(3), 1);
  EXPECT_THROW(partition(9), Error);
}

TEST(Skew, CountsRecordsAndClassesOfEveryRank) {
  const Records data(100);  // 25 of each of 4 classes
  const Skew even = skew_of([](int64_t record) { return record < 50 ? 0 : 1; }, data, 2);
  EXPECT_EQ(even.records, (std::vector<int64_t>{50, 50}));
  EXPECT_EQ(even.classes, (std::vector<std::vector<int64_t>>{{13, 13, 12, 12}, {12, 12, 13, 13}}));
  EXPECT_DOUBLE_EQ(even.ratio, 1);
  EXPECT_NEAR(even.class_distance, 0.02, 1e-12);  // |13/50 - 1/4| four times, halved
  const Skew classes = skew_of([](int64_t record) { return record % 4 == 0 ? 0 : 1; }, data, 2);
  EXPECT_EQ(classes.records, (std::vector<int64_t>{25, 75}));
  EXPECT_DOUBLE_EQ(classes.ratio, 1.5);
  EXPECT_DOUBLE_EQ(classes.class_distance, 0.75);  // rank 0 has one class of four
}

TEST(Skew, OfDataWithoutAnEndIsThatOfASampleWithoutAPattern) {
  const auto data = std::make_shared<Records>(int64_t{1} << 40, 0);
  for (const char* kind : {"even", "round-robin", "hash"}) {
    const Skew skew = skew_of(make(kind, data, 4), *data, 4, 10000);
    EXPECT_LT(skew.ratio, 1.1) << kind;  // 2500 expected, five standard deviations are 217
    EXPECT_TRUE(skew.classes.empty());
  }
}

TEST(Skew, IsPrintedInAFewLines) {
  const Records data(100);
  const std::string text =
      to_text(skew_of([](int64_t record) { return record % 4 == 0 ? 0 : 1; }, data, 2));
  EXPECT_EQ(text,
            "partition of 100 records over 2 ranks: the fullest has 1.500 of the mean; classes "
            "differ by up to 0.750 "
            "(total variation) from those of all records\n"
            "  rank 0           25 records   classes 25 0 0 0\n"
            "  rank 1           75 records   classes 0 25 25 25\n");
}

}  // namespace
}  // namespace tutti
