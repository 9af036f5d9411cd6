#include <gtest/gtest.h>

#include "optim/schedule.h"

#include "optim/optimizer.h"

namespace tutti {
namespace {

TrainConfig cosine() {
  TrainConfig config{};
  config.schedule = "cosine";
  config.lr = 0.4;
  config.warmup = 4;
  config.steps = 104;
  config.final_lr = 0.1;
  return config;
}

TEST(Schedule, WarmUpRisesLinearlyFromItsFirstShare) {
  EXPECT_DOUBLE_EQ(learning_rate(cosine(), 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(cosine(), 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(cosine(), 3), 0.4);
}

TEST(Schedule, CosineFallsFromTheWholeRateOverTheMiddleToItsEnd) {
  EXPECT_DOUBLE_EQ(learning_rate(cosine(), 4), 0.4);
  EXPECT_NEAR(learning_rate(cosine(), 54), 0.4 * 0.55, 1e-15);
  EXPECT_NEAR(learning_rate(cosine(), 104), 0.04, 1e-15);
}

TEST(Schedule, CosineKeepsItsLastValuePastTheSpan) {
  EXPECT_EQ(learning_rate(cosine(), 105), learning_rate(cosine(), 104));
  EXPECT_EQ(learning_rate(cosine(), 1 << 20), learning_rate(cosine(), 104));
}

TEST(Schedule, CosineWithAWarmUpAsLongAsTheJobIsFinite) {
  TrainConfig config = cosine();
  config.steps = config.warmup;
  EXPECT_DOUBLE_EQ(learning_rate(config, 4), 0.4);
  EXPECT_NEAR(learning_rate(config, 5), 0.04, 1e-15);
}

TEST(Schedule, ConstantStaysAfterWarmUp) {
  TrainConfig config = cosine();
  config.schedule = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.1);
  EXPECT_EQ(learning_rate(config, 4), 0.4);
  EXPECT_EQ(learning_rate(config, 4000), 0.4);
  config.warmup = 0;
  EXPECT_EQ(learning_rate(config, 0), 0.4);
}

TEST(Clip, FactorFollowsTorchsRule) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / 4.000001);
  EXPECT_EQ(clip_factor(1e30, 0), 1);
}

}  // namespace
}  // namespace tutti
