#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"

namespace tutti {
namespace {

std::vector<TrainConfig> all_optimizers() {
  TrainConfig adamw{};
  adamw.optimizer = "adamw";
  adamw.beta1 = 0.9;
  adamw.beta2 = 0.95;
  adamw.eps = 1e-8;
  adamw.weight_decay = 0.1;
  TrainConfig sgd = adamw, momentum = adamw, nesterov = adamw;
  sgd.optimizer = momentum.optimizer = nesterov.optimizer = "sgd";
  momentum.momentum = nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  return {adamw, sgd, momentum, nesterov};
}

/// Parameters, gradients and slots of n elements.
struct Values {
  Values(const Optimizer& optimizer, int64_t n, uint32_t seed) : kept(2 + optimizer.slots().size()) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto& values : kept) {
      values.resize(static_cast<size_t>(n));
      for (float& x : values) x = std::abs(normal(generator));
    }
  }
  void update(const Optimizer& optimizer, int64_t begin, int64_t end, int64_t step) {
    std::vector<float*> slots;
    for (size_t k = 2; k < kept.size(); ++k) slots.push_back(kept[k].data() + begin);
    optimizer.update(kept[0].data() + begin, kept[1].data() + begin, slots, end - begin,
                     {.step = step, .lr = 3e-3, .gradient_scale = 1.0 / 3});
  }
  bool operator==(const Values& other) const {
    for (size_t k = 0; k < kept.size(); ++k) {
      if (std::memcmp(kept[k].data(), other.kept[k].data(), kept[k].size() * sizeof(float)) != 0) return false;
    }
    return true;
  }
  std::vector<std::vector<float>> kept;
};

TEST(Optimizer, AnyCutOfTheRangeGivesTheSameBits) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 generator(seed);
  for (const TrainConfig& config : all_optimizers()) {
    for (const char* isa : {"avx2", "auto"}) {
      auto optimizer = make_optimizer(config, isa);
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
        ASSERT_EQ(whole == cut, true) << config.optimizer << " " << isa << " round " << round;
      }
    }
  }
}

TEST(Optimizer, BothInstructionSetsGiveTheSameBits) {
  for (const TrainConfig& config : all_optimizers()) {
    auto narrow = make_optimizer(config, "avx2");
    auto wide = make_optimizer(config);  // avx512 where the processor has it
    Values a(*narrow, 4099, 5), b(*wide, 4099, 5);
    for (int step = 0; step < 20; ++step) {
      a.update(*narrow, 0, 4099, step);
      b.update(*wide, 0, 4099, step);
      ASSERT_EQ(a == b, true) << config.optimizer << " step " << step;
    }
  }
}

TEST(Optimizer, NothingOutsideTheRangeIsTouched) {
  for (const TrainConfig& config : all_optimizers()) {
    for (const char* isa : {"avx2", "auto"}) {
      auto optimizer = make_optimizer(config, isa);
      Values before(*optimizer, 64, 9), after = before;
      after.update(*optimizer, 5, 40, 0);
      for (size_t k = 0; k < before.kept.size(); ++k) {
        for (size_t i = 0; i < 64; ++i) {
          const bool inside = 5 <= i && i < 40;
          ASSERT_EQ(before.kept[k][i] != after.kept[k][i], inside && k != 1)
              << config.optimizer << " " << k << " " << i;
        }
      }
    }
  }
}

TEST(Optimizer, TheFirstStepOfMomentumIsTheGradientWhateverTheSlotHeld) {
  TrainConfig config = all_optimizers()[2];
  config.weight_decay = 0;
  auto optimizer = make_optimizer(config);
  float parameter = 1, gradient = 8, moment = std::nanf("");
  float* slots[] = {&moment};
  optimizer->update(&parameter, &gradient, slots, 1, {.step = 0, .lr = 0.5, .gradient_scale = 0.25});
  EXPECT_EQ(moment, 2);
  EXPECT_EQ(parameter, 0);
}

TEST(Optimizer, AnInstructionSetThatDoesNotExistIsRefusedByName) {
  try {
    make_optimizer(all_optimizers()[0], "neon");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("neon"), std::string::npos);
  }
}

}  // namespace
}  // namespace tutti
