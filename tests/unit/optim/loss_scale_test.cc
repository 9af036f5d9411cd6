// Dynamic loss scaling: when the scale grows and falls, where it ends, and that its text loses
// nothing.
#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace tutti {
namespace {

NumericsConfig config_of(const char* precision, double first = 0, int64_t growth = 3) {
  NumericsConfig config{};
  config.precision = value_named<Precision>(precision).value();
  config.loss_scale = first;
  config.scale_growth = growth;
  return config;
}

LossScale after(LossScale scale, int steps, bool finite, const NumericsConfig& config) {
  for (int i = 0; i < steps; ++i) scale = next_loss_scale(scale, finite, config);
  return scale;
}

TEST(LossScale, StartsAtOneButInFloat16) {
  for (const char* precision : {"float32", "bfloat16"})
    EXPECT_EQ(first_loss_scale(config_of(precision, 1024)), LossScale{}) << precision;
  EXPECT_EQ(first_loss_scale(config_of("float16")), (LossScale{65536, 0, 0}));
  EXPECT_EQ(first_loss_scale(config_of("float16", 1024)), (LossScale{1024, 0, 0}));
}

TEST(LossScale, DoublesAfterSoManyStepsInARowAndCountsAnew) {
  const NumericsConfig config = config_of("float16", 8, 3);
  LossScale scale = after(first_loss_scale(config), 2, true, config);
  EXPECT_EQ(scale, (LossScale{8, 2, 0}));
  scale = next_loss_scale(scale, true, config);
  EXPECT_EQ(scale, (LossScale{16, 0, 0}));
  EXPECT_EQ(after(scale, 3, true, config), (LossScale{32, 0, 0}));
}

TEST(LossScale, ASkippedStepHalvesItAndStartsTheRowAgain) {
  const NumericsConfig config = config_of("float16", 8, 3);
  LossScale scale = after(first_loss_scale(config), 2, true, config);
  scale = next_loss_scale(scale, false, config);
  EXPECT_EQ(scale, (LossScale{4, 0, 1}));
  EXPECT_EQ(after(scale, 2, true, config), (LossScale{4, 2, 1}))
      << "the row of good steps was broken";
  EXPECT_EQ(after(scale, 3, true, config), (LossScale{8, 0, 1}));
  EXPECT_EQ(after(scale, 2, false, config), (LossScale{1, 0, 3}));
}

TEST(LossScale, StopsGrowingAtTwoToTheTwentyFour) {
  const NumericsConfig config = config_of("float16", 0x1p23, 1);
  LossScale scale = next_loss_scale(first_loss_scale(config), true, config);
  EXPECT_EQ(scale.scale, 0x1p24);
  scale = after(scale, 10, true, config);
  EXPECT_EQ(scale.scale, 0x1p24);
  EXPECT_EQ(next_loss_scale(scale, false, config).scale, 0x1p23) << "and still falls";
}

TEST(LossScale, OtherPrecisionsHaveNone) {
  for (const char* precision : {"float32", "bfloat16"}) {
    const NumericsConfig config = config_of(precision, 0, 1);
    EXPECT_EQ(after({}, 5, true, config), LossScale{}) << precision;
    EXPECT_FALSE(may_skip({}, config)) << precision;
    EXPECT_FALSE(may_skip({1024, 0, 0}, config)) << precision;
  }
}

TEST(LossScale, AStepMayBeSkippedWhileThereIsAScaleToLower) {
  const NumericsConfig config = config_of("float16", 8);
  LossScale scale = first_loss_scale(config);
  int skipped = 0;
  for (; may_skip(scale, config) && skipped < 100; ++skipped)
    scale = next_loss_scale(scale, false, config);
  EXPECT_EQ(skipped, 3) << "8, 4, 2";
  EXPECT_EQ(scale, (LossScale{1, 0, 3}));
}

TEST(LossScale, ItsTextGivesBackEveryBit) {
  const unsigned seed = 20240517;
  std::mt19937_64 random(seed);
  EXPECT_EQ(to_text({}), "");
  EXPECT_EQ(loss_scale_from(""), LossScale{});
  std::vector<LossScale> scales{
      {65536, 0, 0}, {1, 1, 0}, {1, 0, 1}, {0.1, 7, 3}, {0x1p24, 2000, int64_t{1} << 40}};
  for (int i = 0; i < 1000; ++i)
    scales.push_back({std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                 static_cast<int>(random() % 60) - 20),
                      static_cast<int64_t>(random() >> 1), static_cast<int64_t>(random() >> 1)});
  for (const LossScale& scale : scales)
    EXPECT_EQ(loss_scale_from(to_text(scale)), scale) << to_text(scale) << ", seed " << seed;
}

TEST(LossScale, ItsTextCanStandInTheStatesSchedule) {
  EXPECT_EQ(to_text({0.1, 7, 3}).find(';'), std::string::npos)
      << "what cuts it off from the schedule's own";
}

TEST(LossScale, TextThatIsNoneIsRefused) {
  const std::string good = to_text({4, 1, 2});
  for (const std::string& text :
       {std::string("scale"), std::string("scale 0x1p+2 good 1"), good + " ", good + "x",
        " " + good + ";", good.substr(1), std::string("scale 0x1p+2 good x skipped 2"),
        std::string("good 1 skipped 2 scale 0x1p+2")}) {
    EXPECT_THROW(loss_scale_from(text), Error) << text;
  }
}

TEST(LossScale, AScaleThatNoRunCanHaveIsRefused) {
  for (const char* text : {"scale nan good 1 skipped 2", "scale inf good 0 skipped 0",
                           "scale -0x1p+2 good 0 skipped 0", "scale 0x0p+0 good 0 skipped 0",
                           "scale 0x1p+2 good -1 skipped 0", "scale 0x1p+2 good 0 skipped -1"})
    EXPECT_THROW(loss_scale_from(text), Error) << text;
}

}  // namespace
}  // namespace tutti
