// What holds for every optimizer: bits that depend on nothing but the elements.
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/fp_mode.h"
#include "config/job_parts.h"

namespace tutti {
namespace {

std::vector<TrainConfig> all_optimizers() {
  std::vector<TrainConfig> all;
  const auto add = [&](std::string_view name, double momentum = 0, bool nesterov = false) {
    TrainConfig config{};
    config.optimizer = name;
    config.beta1 = 0.9;
    config.beta2 = 0.95;
    config.eps = 1e-8;
    config.momentum = momentum;
    config.nesterov = nesterov;
    all.push_back(config);
  };
  for (const OptimizerPart& part : parts<OptimizerPart>()) {
    add(part.name);
    if (part.momentum) add(part.name, 0.9);
    if (part.nesterov) add(part.name, 0.9, true);
  }
  return all;
}

TrainConfig of(const std::string& name) {
  for (const TrainConfig& config : all_optimizers()) {
    if (config.optimizer == name) return config;
  }
  throw Error(name);
}

/// Parameters, gradients and slots of n elements.
struct Values {
  Values(const Optimizer& optimizer, int64_t n, uint32_t seed)
      : kept(2 + optimizer.slots().size()) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto& values : kept) {
      values.resize(static_cast<size_t>(n));
      for (float& x : values) x = std::abs(normal(generator));
    }
  }
  std::vector<float*> slots(int64_t begin) {
    std::vector<float*> at;
    for (size_t k = 2; k < kept.size(); ++k) at.push_back(kept[k].data() + begin);
    return at;
  }
  /// About a fifth of the gradients are cut.
  void update(const Optimizer& optimizer, int64_t begin, int64_t end, int64_t step) {
    const StepScalars scalars{.step = step,
                              .lr = 3e-3,
                              .gradient_scale = 1.0 / 3,
                              .clip_value = 0.4,
                              .weight_decay = 0.1,
                              .trust = 0.7};
    float *p = kept[0].data() + begin, *g = kept[1].data() + begin;
    Norms norms;
    if (optimizer.two_passes()) optimizer.measure(p, g, slots(begin), end - begin, scalars, norms);
    optimizer.update(p, g, slots(begin), end - begin, scalars);
  }
  bool operator==(const Values& other) const {
    for (size_t k = 0; k < kept.size(); ++k) {
      if (std::memcmp(kept[k].data(), other.kept[k].data(), kept[k].size() * sizeof(float)) != 0)
        return false;
    }
    return true;
  }
  std::vector<std::vector<float>> kept;
};

std::string text_of(const TrainConfig& config) {
  return fmt::format("{} momentum {} nesterov {}", config.optimizer, config.momentum,
                     config.nesterov);
}

TEST(Optimizer, AnyCutOfTheRangeGivesTheSameBits) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 generator(seed);
  for (const TrainConfig& config : all_optimizers()) {
    for (const CodePath path : runnable_paths()) {
      auto optimizer = make_optimizer(config, path);
      const int64_t n = 517;
      Values whole(*optimizer, n, seed);
      for (int step = 0; step < 3; ++step) whole.update(*optimizer, 0, n, step);
      for (int round = 0; round < 30; ++round) {
        Values cut(*optimizer, n, seed);
        for (int step = 0; step < 3; ++step) {
          for (int64_t begin = 0, end = 0; begin < n; begin = end) {
            end = std::min<int64_t>(n, begin + 1 + static_cast<int64_t>(generator() % 70));
            cut.update(*optimizer, begin, end, step);
          }
        }
        ASSERT_EQ(whole == cut, true)
            << text_of(config) << " " << name_of(path) << " round " << round;
      }
    }
  }
}

TEST(Optimizer, EveryCodePathGivesTheSameBits) {
  set_fp_mode();
  for (const TrainConfig& config : all_optimizers()) {
    const auto fastest = make_optimizer(config);
    Values expected(*fastest, 4099, 5);
    for (int step = 0; step < 20; ++step) expected.update(*fastest, 0, 4099, step);
    for (const CodePath path : runnable_paths()) {
      const auto optimizer = make_optimizer(config, path);
      Values values(*optimizer, 4099, 5);
      for (int step = 0; step < 20; ++step) values.update(*optimizer, 0, 4099, step);
      EXPECT_EQ(values == expected, true) << text_of(config) << " " << name_of(path);
    }
  }
}

TEST(Optimizer, NothingOutsideTheRangeIsTouched) {
  for (const TrainConfig& config : all_optimizers()) {
    for (const CodePath path : runnable_paths()) {
      auto optimizer = make_optimizer(config, path);
      Values before(*optimizer, 64, 9), after = before;
      after.update(*optimizer, 5, 40, 0);
      for (size_t k = 0; k < before.kept.size(); ++k) {
        for (size_t i = 0; i < 64; ++i) {
          const bool inside = 5 <= i && i < 40;
          ASSERT_EQ(before.kept[k][i] != after.kept[k][i], inside && k != 1)
              << text_of(config) << " " << k << " " << i;
        }
      }
    }
  }
}

TEST(Optimizer, ReadsTheNumbersThatItsRowSays) {
  const auto after_steps = [](const TrainConfig& config) {
    auto optimizer = make_optimizer(config);
    Values values(*optimizer, 64, 7);
    // Slots are positive here: gradients against them let lion's sign depend on its betas.
    for (float& gradient : values.kept[1]) gradient = -gradient;
    for (int step = 0; step < 3; ++step) values.update(*optimizer, 0, 64, step);
    return values;
  };
  const std::pair<bool OptimizerPart::*, double TrainConfig::*> numbers[] = {
      {&OptimizerPart::beta1, &TrainConfig::beta1},
      {&OptimizerPart::beta2, &TrainConfig::beta2},
      {&OptimizerPart::momentum, &TrainConfig::momentum}};
  for (const OptimizerPart& part : parts<OptimizerPart>()) {
    const TrainConfig config = of(std::string(part.name));
    for (const auto& [reads, number] : numbers) {
      TrainConfig other = config;
      other.*number = 0.5;
      EXPECT_EQ(after_steps(config) == after_steps(other), !(part.*reads)) << text_of(other);
    }
  }
}

TEST(Optimizer, TheFirstStepOfMomentumIsTheGradientWhateverTheSlotHeld) {
  TrainConfig config = of("sgd");
  config.momentum = 0.9;
  auto optimizer = make_optimizer(config);
  float parameter = 1, gradient = 8, moment = std::nanf("");
  float* slots[] = {&moment};
  optimizer->update(&parameter, &gradient, slots, 1,
                    {.step = 0, .lr = 0.5, .gradient_scale = 0.25});
  EXPECT_EQ(moment, 2);
  EXPECT_EQ(parameter, 0);
}

TEST(Optimizer, ClippingByValueCutsTheScaledGradientOnBothSides) {
  auto optimizer = make_optimizer(of("sgd"));
  float parameters[] = {0, 0, 0, 0}, gradients[] = {8, -8, 2, -2};
  optimizer->update(parameters, gradients, {}, 4,
                    {.lr = 1, .gradient_scale = 0.25, .clip_value = 1});
  EXPECT_EQ(parameters[0], -1);
  EXPECT_EQ(parameters[1], 1);
  EXPECT_EQ(parameters[2], -0.5f);
  EXPECT_EQ(parameters[3], 0.5f);
}

TEST(Optimizer, AGradientThatIsNotANumberIsNotHiddenByClipping) {
  for (const CodePath path : runnable_paths()) {
    auto optimizer = make_optimizer(of("sgd"), path);
    float parameter = 1, gradient = std::nanf("");
    optimizer->update(&parameter, &gradient, {}, 1, {.lr = 1, .clip_value = 1});
    EXPECT_TRUE(std::isnan(parameter)) << name_of(path);
  }
}

// The roundings of adamw and sgd are part of every result ever made with them: written out here,
// operation by operation.
TEST(Optimizer, AdamwMakesTheseRoundingsAndNoOthers) {
  const TrainConfig config = of("adamw");
  auto optimizer = make_optimizer(config);
  Values values(*optimizer, 100, 3), expected = values;
  for (int64_t step = 0; step < 5; ++step) {
    const StepScalars scalars{
        .step = step, .lr = 3e-3, .gradient_scale = 1.0 / 3, .weight_decay = 0.1};
    optimizer->update(values.kept[0].data(), values.kept[1].data(), values.slots(0), 100, scalars);
    const double t = static_cast<double>(step) + 1;
    const auto beta1 = static_cast<float>(0.9), rest1 = static_cast<float>(1 - 0.9);
    const auto beta2 = static_cast<float>(0.95), rest2 = static_cast<float>(1 - 0.95);
    const auto root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, t)));
    const auto step_size = static_cast<float>(3e-3 / (1 - std::pow(0.9, t)));
    for (size_t i = 0; i < 100; ++i) {
      float &p = expected.kept[0][i], &m = expected.kept[2][i], &v = expected.kept[3][i];
      const float g = expected.kept[1][i] * static_cast<float>(1.0 / 3);
      m = std::fma(beta1, m, rest1 * g);
      v = std::fma(beta2, v, rest2 * g * g);
      p = std::fma(-step_size,
                   m / std::fma(std::sqrt(v), root_correction, static_cast<float>(1e-8)),
                   p * static_cast<float>(1 - 3e-3 * 0.1));
    }
    ASSERT_EQ(values == expected, true) << "step " << step;
  }
}

TEST(Optimizer, SgdMakesTheseRoundingsAndNoOthers) {
  TrainConfig config = of("sgd");
  config.momentum = 0.9;
  config.nesterov = true;
  auto optimizer = make_optimizer(config);
  Values values(*optimizer, 100, 3), expected = values;
  const float lr = 3e-3f, decay = 0.1f, momentum = 0.9f;
  for (int64_t step = 0; step < 5; ++step) {
    const StepScalars scalars{
        .step = step, .lr = 3e-3, .gradient_scale = 1.0 / 3, .weight_decay = 0.1};
    optimizer->update(values.kept[0].data(), values.kept[1].data(), values.slots(0), 100, scalars);
    for (size_t i = 0; i < 100; ++i) {
      float &p = expected.kept[0][i], &m = expected.kept[2][i];
      const float direction = std::fma(decay, p, expected.kept[1][i] * static_cast<float>(1.0 / 3));
      m = step == 0 ? direction : std::fma(momentum, m, direction);
      p = std::fma(-lr, std::fma(momentum, m, direction), p);
    }
    ASSERT_EQ(values == expected, true) << "step " << step;
  }
}

TEST(Optimizer, AnOptimizerThatDoesNotExistIsRefusedByName) {
  TrainConfig config = of("adamw");
  config.optimizer = "adamax";
  try {
    make_optimizer(config);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("adamax"), std::string::npos);
  }
}

TEST(Clip, FactorFollowsTorchsRule) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / 4.000001);
  EXPECT_EQ(clip_factor(1e30, 0), 1);
}

}  // namespace
}  // namespace tutti
