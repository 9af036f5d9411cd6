// Decisions that follow held-out metrics: the plateau schedule, early stopping, the best
// evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "optim/schedule.h"

namespace tutti {
namespace {

TrainConfig config_of(const char* metric) {
  TrainConfig config{};
  config.watch = metric;
  config.schedule = "plateau";
  config.lr = 1;
  config.factor = 0.5;
  config.final_lr = 0.2;
  config.patience = 2;
  config.early_stop = 4;
  return config;
}

/// The judgements of evaluations at steps 10, 20, ...
std::vector<Judgement> judged(const TrainConfig& config, const std::vector<double>& values) {
  std::vector<Judgement> all;
  Watched watched;
  for (double value : values) {
    all.push_back(judge(config, watched, value, 10 * static_cast<int64_t>(all.size() + 1)));
    watched = all.back().watched;
  }
  return all;
}

TEST(Judge, TheRateFallsAfterPatienceEvaluationsWithoutImprovementAndCountsAnew) {
  const auto all = judged(config_of("loss"), {3, 2, 2.5, 2.5, 2.5, 1, 1, 1, 1, 1, 1, 1});
  std::vector<double> rates;
  rates.reserve(all.size());
  for (const Judgement& judgement : all) rates.push_back(judgement.watched.rate);
  // final_lr
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2}));
}

TEST(Judge, OnlyThePlateauScheduleLowersTheRate) {
  TrainConfig config = config_of("loss");
  config.schedule = "cosine";
  const Watched end = judged(config, {1, 2, 2, 2, 2, 2}).back().watched;
  EXPECT_EQ(end.rate, 1);
  EXPECT_EQ(end.plateau, 0);
}

TEST(Judge, EarlyStoppingComesAfterSoManyStaleEvaluationsInARow) {
  const auto all = judged(config_of("loss"), {3, 4, 4, 4, 2, 3, 3, 3, 3});
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].stop, i == 8) << i;
  TrainConfig off = config_of("loss");
  off.early_stop = 0;
  EXPECT_FALSE(judged(off, {1, 2, 2, 2, 2, 2, 2, 2, 2}).back().stop);
}

TEST(Judge, TheBestIsTheSmallestOfALossAndTheLargestOfAnAccuracy) {
  const Watched loss = judged(config_of("loss"), {3, 1, 2}).back().watched;
  EXPECT_EQ(loss.best, 1);
  EXPECT_EQ(loss.best_step, 20);
  EXPECT_EQ(loss.stale, 1);
  const Watched accuracy = judged(config_of("accuracy"), {0.3, 0.1, 0.7}).back().watched;
  EXPECT_EQ(accuracy.best, 0.7);
  EXPECT_EQ(accuracy.best_step, 30);
  EXPECT_EQ(accuracy.stale, 0);
  for (const char* metric : {"loss", "perplexity", "mse", "mae"})
    EXPECT_FALSE(larger_is_better(metric)) << metric;
  for (const char* metric : {"accuracy", "precision", "recall", "f1", "auc", "r2"})
    EXPECT_TRUE(larger_is_better(metric)) << metric;
}

TEST(Judge, AnImprovementMustExceedMinChange) {
  TrainConfig config = config_of("loss");
  config.min_change = 0.5;
  const auto all = judged(config, {3, 2.5, 2.25});
  EXPECT_TRUE(all[0].improved);
  EXPECT_FALSE(all[1].improved);
  EXPECT_TRUE(all[2].improved);
  config.min_change = 0;
  EXPECT_FALSE(judged(config, {3, 3})[1].improved);
}

TEST(Judge, AValueThatIsNotFiniteIsNoImprovementEvenAtFirst) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  const auto all = judged(config_of("loss"), {nan, infinity, 5, -infinity, nan});
  const std::vector<bool> expected = {false, false, true, false, false};
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].improved, expected[i]) << i;
  EXPECT_EQ(all.back().watched.best, 5);
  EXPECT_EQ(all.back().watched.best_step, 30);
}

TEST(Watched, TextKeepsEveryBit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 generator(seed);
  std::vector<double> values = {
      0.0, -0.0, 1, -1.5, 1e300, 5e-324, std::numeric_limits<double>::max()};
  for (int i = 0; i < 200; ++i)
    values.push_back(std::ldexp(static_cast<double>(generator()), int(generator() % 99)) - 1);
  for (double value : values) {
    const Watched watched{value, static_cast<int64_t>(generator() >> 2), 3, 2, 1.0 / 3};
    const Watched back = watched_from(to_text(watched));
    EXPECT_EQ(back, watched) << to_text(watched);
    EXPECT_EQ(std::signbit(back.best), std::signbit(value)) << to_text(watched);
  }
}

TEST(Watched, NothingSeenIsNoText) {
  EXPECT_EQ(to_text({}), "");
  EXPECT_EQ(watched_from(""), Watched{});
}

TEST(Watched, TextThatIsNoneIsRefused) {
  const std::string good =
      to_text({.best = 2.5, .best_step = 10, .stale = 1, .plateau = 1, .rate = 0.5});
  EXPECT_NO_THROW(watched_from(good));
  for (size_t n = 1; n < good.size() - 3; ++n)
    EXPECT_THROW(watched_from(good.substr(0, n)), Error) << n;
  for (const std::string& text :
       {good + " ", good + "0.5", " " + good, std::string("best nan"), std::string("x")})
    EXPECT_THROW(watched_from(text), Error) << text;
}

}  // namespace
}  // namespace tutti
