#include <gtest/gtest.h>

#include <cmath>

#include "config/job_parts.h"
#include "data/core/sources.h"

namespace tutti {
namespace {

std::vector<at::Tensor> tensors(int64_t rows) {
  return allocate({{"numbers", {rows, kClickFields.numbers}, at::kFloat},
                   {"categories", {rows, kClickFields.categories}, at::kLong},
                   {"targets", {rows, 1}, at::kFloat}});
}

TEST(Clicks, ARecordIsAFunctionOfSeedAndRecordAlone) {
  const auto a = make_clicks(3), b = make_clicks(3), other = make_clicks(4);
  auto x = tensors(2), y = tensors(2);
  const int64_t record = kGenerated + 5;
  a->read(record, x, 1);
  b->read(7, y, 1);
  EXPECT_FALSE(x[0][1].equal(y[0][1]));
  b->read(record, y, 1);
  for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(x[k][1].equal(y[k][1])) << k;
  other->read(record, y, 1);
  EXPECT_FALSE(x[0][1].equal(y[0][1]));
  EXPECT_EQ(a->label(record), x[2][1].item<float>());
}

TEST(Clicks, ValuesLieInTheirRangesAndUseAllOfThem) {
  constexpr int64_t kRecords = 20000;
  auto all = tensors(kRecords);
  const auto clicks = make_clicks(1);
  for (int64_t i = 0; i < kRecords; ++i) clicks->read(i, all, i);
  const auto* ids = all[1].const_data_ptr<int64_t>();
  std::vector<int64_t> counts(kClickFields.values);
  for (int64_t i = 0; i < kRecords * kClickFields.categories; ++i) {
    ASSERT_TRUE(ids[i] >= 0 && ids[i] < kClickFields.values);
    counts[static_cast<size_t>(ids[i])] += 1;
  }
  for (const int64_t count : counts) EXPECT_GT(count, 0);
  EXPECT_GT(counts[0], 4 * counts[kClickFields.values - 1]);
  // Of 160000 uniform draws with deviation 1: the mean's deviation is 0.0025, the square's 0.0022;
  // five of them.
  double sum = 0, squares = 0;
  const auto* x = all[0].const_data_ptr<float>();
  for (int64_t i = 0; i < kRecords * kClickFields.numbers; ++i)
    sum += x[i], squares += static_cast<double>(x[i]) * x[i];
  EXPECT_NEAR(sum / (kRecords * kClickFields.numbers), 0, 0.0125);
  EXPECT_NEAR(squares / (kRecords * kClickFields.numbers), 1, 0.0125);
}

TEST(Clicks, TheTruthIsCalibratedAndFarBetterThanTheBaseRate) {
  constexpr int64_t kRecords = 5000;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto clicks = make_clicks(seed);
    double expected = 0, found = 0, loss = 0, variance = 0;
    for (int64_t i = 0; i < kRecords; ++i) {
      const double p = clicks_truth(seed, kGenerated + i);
      ASSERT_TRUE(p > 0 && p < 1);
      const bool click = clicks->label(kGenerated + i) == 1;
      expected += p;
      variance += p * (1 - p);
      found += click ? 1 : 0;
      loss -= std::log(click ? p : 1 - p);
    }
    // five deviations of a sum of coin tosses
    EXPECT_NEAR(found, expected, 5 * std::sqrt(variance)) << seed;
    loss /= kRecords;
    EXPECT_NEAR(loss, clicks_truth_loss(seed, kRecords), 1e-12);
    const double rate = found / kRecords;
    const double base = -(rate * std::log(rate) + (1 - rate) * std::log(1 - rate));
    EXPECT_GT(rate, 0.1) << seed;
    EXPECT_LT(loss, 0.75 * base) << "seed " << seed << " rate " << rate << " base " << base;
    std::printf("seed %lu: rate %.3f, log loss of the rate %.3f, of the truth %.3f\n", seed, rate,
                base, loss);
  }
}

}  // namespace
}  // namespace tutti
