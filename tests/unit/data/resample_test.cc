// Records drawn by weight: all classes alike, weights of the classes, a column's.
#include "data/core/resample.h"

#include <map>

#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

/// Nine of ten records are of class 0; the weight of a record is its number.
class Skewed final : public Dataset {
 public:
  explicit Skewed(int64_t none = 0) : none_(none) {}
  int64_t size() const override { return 100; }
  void read(int64_t, std::span<const at::Tensor>, int64_t) const override {}
  int64_t label(int64_t record) const override {
    return record < none_ ? -1 : record % 10 == 9 ? 2 : 0;
  }
  double weight(int64_t record) const override { return static_cast<double>(record); }

 private:
  int64_t none_;
};

Job resampled(const std::string& how, std::vector<double> weights = {}) {
  Job job = job_of("");
  job.data.resample = value_named<Resample>(how).value();
  job.data.resample_weights = std::move(weights);
  job.model.classes = 3;
  return job;
}

constexpr int kDraws = 20000;

/// How often each class is drawn, as a share.
std::map<int64_t, double> shares(const Job& job) {
  const Skewed data;
  const Order order = make_order(job, data);
  std::map<int64_t, double> counts;
  for (uint64_t i = 0; i < kDraws; ++i)
    counts[data.label(static_cast<int64_t>(order.record(i)))] += 1.0 / kDraws;
  return counts;
}

TEST(Resample, NoneIsAPermutationOfTheRecords) {
  const Order order = make_order(resampled("none"), Skewed());
  EXPECT_EQ(order.weights, nullptr);
  std::map<uint64_t, int> seen;
  for (uint64_t i = 0; i < 100; ++i) ++seen[order.record(i)];
  EXPECT_EQ(seen.size(), 100u);
}

TEST(Resample, BalancedDrawsEveryClassThatOccursAlike) {
  const auto drawn = shares(resampled("balanced"));
  ASSERT_EQ(drawn.size(), 2u);          // there is no record of class 1
  EXPECT_NEAR(drawn.at(0), 0.5, 0.02);  // four deviations of 20000 keyed draws are 0.014
  EXPECT_NEAR(drawn.at(2), 0.5, 0.02);
}

TEST(Resample, ClassesDrawsByTheWeightOfARecordsClass) {
  const auto drawn = shares(resampled("classes", {1, 0, 3}));
  EXPECT_NEAR(drawn.at(0), 90.0 / 120, 0.02);
  EXPECT_NEAR(drawn.at(2), 30.0 / 120, 0.02);
  EXPECT_EQ(shares(resampled("classes", {0, 0, 1})).count(0), 0u);
}

TEST(Resample, ColumnDrawsByTheRecordsOwnWeight) {
  const Order order = make_order(resampled("column"), Skewed());
  double high = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    EXPECT_NE(order.record(i), 0u);  // its weight is 0
    high += order.record(i) >= 50 ? 1.0 / kDraws : 0;
  }
  EXPECT_NEAR(high, 3725.0 / 4950, 0.02);
}

TEST(Resample, IsAFunctionOfSeedAndPosition) {
  Job job = resampled("balanced");
  const auto drawn = [&] {
    const Order order = make_order(job, Skewed());
    std::vector<int64_t> records(50);
    order.records(1000, records);
    for (size_t i = 0; i < records.size(); ++i)
      EXPECT_EQ(static_cast<uint64_t>(records[i]), order.record(1000 + i));
    return records;
  };
  const auto first = drawn();
  EXPECT_EQ(drawn(), first);
  ++job.train.seed;
  EXPECT_NE(drawn(), first);
}

TEST(Resample, RefusesWeightsThatTheDataDoesNotHave) {
  const auto said = [](const Job& job, const Dataset& data) {
    return fault([&] { make_order(job, data); });
  };
  EXPECT_EQ(said(resampled("balanced"), Skewed(1)),
            "data.resample = \"balanced\": the records have no classes");
  EXPECT_EQ(said(resampled("classes", {1, 1}), Skewed()),
            "data.resample_weights has 2 weights, but a record is of class 2");
  EXPECT_EQ(said(resampled("classes", {1, 1, 1, 1}), Skewed()),
            "data.resample_weights has 4 weights, but the highest class of a record is 2");
  EXPECT_NE(said(resampled("classes", {0, 1, 0}), Skewed()), "no fault");  // nothing could be drawn
  Job endless = resampled("balanced");
  endless.data.kind = "points";
  const Split split = open_data(endless);
  EXPECT_NE(said(endless, *split.train).find("are too many to weigh"), std::string::npos);
}

}  // namespace
}  // namespace tutti
