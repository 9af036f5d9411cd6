// Stated values are those of torch.optim.lr_scheduler (2.11) for the same course; both compute in
// double, and torch's recurrences round at every step: 1e-12 apart at most.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/job_parts.h"
#include "optim/optimizer.h"

namespace tutti {
namespace {

TrainConfig of(const char* schedule, int64_t warmup = 0) {
  TrainConfig config{};
  config.schedule = schedule;
  config.lr = 0.4;
  config.warmup = warmup;
  config.steps = 100 + warmup;
  config.final_lr = 0.1;
  config.factor = 0.5;
  config.every = 10;
  config.power = 3;
  config.cycle_growth = 1;
  return config;
}

using Course = std::vector<std::pair<int64_t, double>>;
void expect(const TrainConfig& config, const Course& course) {
  for (const auto& [step, value] : course) {
    EXPECT_NEAR(learning_rate(config, step), value, 1e-12) << config.schedule << " step " << step;
  }
}

TEST(Schedule, WarmUpRisesLinearlyFromItsFirstShareAndThenTheScheduleStarts) {
  for (const char* name : {"constant", "step", "exponential", "linear", "polynomial", "cosine",
                           "inverse-sqrt", "plateau"}) {
    const TrainConfig config = of(name, 4);
    EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.1) << name;
    EXPECT_DOUBLE_EQ(learning_rate(config, 1), 0.2) << name;
    EXPECT_DOUBLE_EQ(learning_rate(config, 3), 0.4) << name;
    if (config.schedule != "inverse-sqrt") {
      EXPECT_DOUBLE_EQ(learning_rate(config, 4), 0.4) << name;
      EXPECT_DOUBLE_EQ(learning_rate(config, 4 + 37), learning_rate(of(name), 37)) << name;
    }
  }
}

TEST(Schedule, ReadsTheKeysThatItsRowSays) {
  struct Reading {
    const char* key;
    bool SchedulePart::*is_read;
    void (*change)(TrainConfig& config);
  };
  const Reading readings[] = {
      {"final_lr", &SchedulePart::final_lr, [](TrainConfig& config) { config.final_lr = 0.2; }},
      {"factor", &SchedulePart::factor, [](TrainConfig& config) { config.factor = 0.7; }},
      {"every", &SchedulePart::every, [](TrainConfig& config) { config.every = 7; }},
      {"power", &SchedulePart::power, [](TrainConfig& config) { config.power = 2; }},
      {"cycle", &SchedulePart::cycle, [](TrainConfig& config) { config.cycle = 30; }}};
  for (const SchedulePart& part : parts<SchedulePart>()) {
    if (part.watches) continue;  // its keys are read when evaluations are judged
    for (const Reading& reading : readings) {
      const TrainConfig config = of(std::string(part.name).c_str());
      TrainConfig other = config;
      reading.change(other);
      bool same = true;
      for (int step = 0; step <= 100; ++step)
        same = same && learning_rate(config, step) == learning_rate(other, step);
      EXPECT_EQ(same, !(part.*reading.is_read)) << part.name << " and " << reading.key;
    }
  }
}

TEST(Schedule, ConstantStays) {
  expect(of("constant"), {{0, 0.4}, {50, 0.4}, {100, 0.4}, {100000, 0.4}});
}

TEST(Schedule, StepFallsAtOnceAfterEverySoManySteps) {
  expect(of("step"),
         {{0, 0.4}, {1, 0.4}, {9, 0.4}, {10, 0.2}, {25, 0.1}, {60, 0.00625}, {99, 0.00078125}});
}

TEST(Schedule, ExponentialFallsByTheSameFactorAtEveryStep) {
  expect(of("exponential"), {{0, 0.4},
                             {1, 0.37321319661472296},
                             {9, 0.21435469250725864},
                             {10, 0.2},
                             {25, 0.07071067811865475},
                             {60, 0.00625},
                             {99, 0.0004186615088032395}});
}

TEST(Schedule, LinearFallsToItsFinalRate) {
  expect(of("linear"), {{0, 0.4}, {1, 0.3964}, {25, 0.31}, {99, 0.0436}, {100, 0.04}});
}

TEST(Schedule, PolynomialFallsByItsPower) {
  TrainConfig config = of("polynomial");
  config.final_lr = 0;
  expect(config, {{0, 0.4}, {1, 0.3881196}, {25, 0.16875}, {99, 4e-7}, {100, 0}});
  config.final_lr = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(config, 100), 0.04);
}

TEST(Schedule, CosineFallsInHalfAWave) {
  expect(of("cosine"), {{0, 0.4},
                        {1, 0.3999111808658317},
                        {25, 0.3472792206135786},
                        {50, 0.22},
                        {99, 0.04008881913416831},
                        {100, 0.04}});
}

TEST(Schedule, CosineRestartsAfterCyclesOfGrowingLength) {
  TrainConfig config = of("cosine");
  config.cycle = 10;
  config.cycle_growth = 2;
  config.steps = 71;
  expect(config, {{0, 0.4},
                  {3, 0.32580134541264516},
                  {9, 0.04880982706687237},
                  {10, 0.4},
                  {15, 0.3472792206135786},
                  {29, 0.04221609869287522},
                  {30, 0.4},
                  {31, 0.3994451200719631},
                  {69, 0.04055487992803697}});
}

TEST(Schedule, CosineRestartsAfterCyclesOfEqualLength) {
  TrainConfig config = of("cosine");
  config.cycle = 10;
  expect(config, {{0, 0.4},
                  {7, 0.11419865458735487},
                  {9, 0.04880982706687237},
                  {10, 0.4},
                  {15, 0.22},
                  {20, 0.4},
                  {39, 0.04880982706687237}});
}

TEST(Schedule, EveryBorderOfGrowingCyclesIsARestart) {
  for (double growth : {1.5, 2.0, 3.0, 10.0}) {
    TrainConfig config = of("cosine");
    config.cycle = 4;
    config.cycle_growth = growth;
    config.steps = 1 << 30;
    double begin = 0, length = 4;
    for (int i = 0; i < 8; ++i, begin += length, length *= growth) {
      const auto border = static_cast<int64_t>(std::ceil(begin));
      EXPECT_NEAR(learning_rate(config, border), 0.4, i < 3 ? 0.1 : 0.01)
          << growth << " cycle " << i;
      if (border > 0)
        EXPECT_LT(learning_rate(config, border - 1), 0.25) << growth << " cycle " << i;
    }
  }
}

TEST(Schedule, ACycleThatEndsWithTheJobIsNotFollowedByAnother) {
  TrainConfig config = of("cosine");
  config.cycle = 20;
  EXPECT_DOUBLE_EQ(learning_rate(config, 80), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(config, 100), 0.04);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000), 0.04);
}

TEST(Schedule, OneCycleRisesOverTheWarmUpAndFallsToItsEnd) {
  TrainConfig config = of("one-cycle");
  config.warmup = 20;
  config.final_lr = 0.001;
  expect(config, {{0, 0.016},
                  {1, 0.01836383860573354},
                  {10, 0.208},
                  {19, 0.39763616139426644},
                  {20, 0.4},
                  {21, 0.39984596144089646},
                  {60, 0.2002},
                  {99, 0.0005540385591035644},
                  {100, 0.0004}});
}

TEST(Schedule, InverseSquareRootFallsFromTheEndOfTheWarmUp) {
  expect(of("inverse-sqrt", 16), {{15, 0.4}, {63, 0.2}, {115, 0.4 * std::sqrt(16.0 / 116)}});
  expect(of("inverse-sqrt"), {{0, 0.4}, {3, 0.2}, {99, 0.04}});
}

TEST(Schedule, PlateauFollowsWhatWasWatched) {
  EXPECT_EQ(learning_rate(of("plateau"), 7), 0.4);
  EXPECT_EQ(learning_rate(of("plateau"), 7, {.rate = 0.25}), 0.1);
  EXPECT_EQ(learning_rate(of("cosine"), 0, {.rate = 0.25}), 0.4);
}

TEST(Schedule, EveryScheduleKeepsItsLastValuePastTheSpan) {
  for (const char* name : {"constant", "step", "exponential", "linear", "polynomial", "cosine",
                           "one-cycle", "inverse-sqrt", "plateau"}) {
    const TrainConfig config = of(name, 4);
    EXPECT_EQ(learning_rate(config, 105), learning_rate(config, 104)) << name;
    EXPECT_EQ(learning_rate(config, int64_t{1} << 40), learning_rate(config, 104)) << name;
  }
}

TEST(Schedule, AWarmUpAsLongAsTheJobIsFinite) {
  for (const char* name : {"linear", "polynomial", "cosine", "one-cycle"}) {
    TrainConfig config = of(name, 4);
    config.steps = config.warmup;
    EXPECT_DOUBLE_EQ(learning_rate(config, 4), 0.4) << name;
    EXPECT_NEAR(learning_rate(config, 5), 0.04, 1e-15) << name;
  }
}

TEST(Schedule, AScheduleThatDoesNotExistIsRefusedByName) {
  try {
    learning_rate(of("sawtooth"), 0);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sawtooth"), std::string::npos);
  }
}

}  // namespace
}  // namespace tutti
