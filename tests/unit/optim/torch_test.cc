// Against torch::optim in the same process. The one test file of this folder that pays for torch's optimizer headers.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <random>

#include "optim/optimizer.h"

namespace tutti {
namespace {

constexpr int64_t kSize = 1003;
constexpr int kSteps = 50;
constexpr float kScale = 0.25f;  // a power of two, so that torch gets the very same gradients

/// The largest |ours - theirs| / (1e-2 + |theirs|) after 50 steps of both on the same gradients.
template <typename TorchOptimizer, typename Options>
double compare(const TrainConfig& config, Options options) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  std::vector<float> ours(kSize), gradient(kSize);
  for (float& x : ours) x = normal(generator);
  at::Tensor theirs = at::empty({kSize}, at::kFloat);
  std::copy(ours.begin(), ours.end(), theirs.mutable_data_ptr<float>());
  theirs.requires_grad_(true);
  theirs.mutable_grad() = at::zeros({kSize}, at::kFloat);
  TorchOptimizer torch_optimizer(std::vector<at::Tensor>{theirs}, options);

  auto optimizer = make_optimizer(config);
  std::vector<std::vector<float>> kept(optimizer->slots().size(), std::vector<float>(kSize));
  std::vector<float*> slots;
  slots.reserve(kept.size());
  for (auto& slot : kept) slots.push_back(slot.data());
  for (int step = 0; step < kSteps; ++step) {
    for (float& x : gradient) x = normal(generator);
    float* torch_gradient = theirs.mutable_grad().mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSize; ++i) torch_gradient[i] = gradient[i] * kScale;
    torch_optimizer.step();
    optimizer->update(ours.data(), gradient.data(), slots, kSize,
                      {.step = step, .lr = config.lr, .gradient_scale = kScale});
  }
  double worst = 0;
  const float* values = theirs.const_data_ptr<float>();
  for (int64_t i = 0; i < kSize; ++i) {
    worst = std::max(worst, std::abs(double{ours[i]} - values[i]) / (1e-2 + std::abs(values[i])));
  }
  return worst;
}

TrainConfig base() {
  TrainConfig config{};
  config.lr = 1e-2;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  return config;
}

// Both round each operation to float but ours fuses multiply and add: a few units in the last place (6e-8) a step, 50
// steps.
constexpr double kTolerance = 5e-6;

TEST(AgainstTorch, AdamwStaysWithTorchForFiftySteps) {
  TrainConfig config = base();
  config.optimizer = "adamw";
  auto options = torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1);
  EXPECT_LT((compare<torch::optim::AdamW>(config, options)), kTolerance);
}

TEST(AgainstTorch, SgdStaysWithTorchForFiftySteps) {
  for (double momentum : {0.0, 0.9}) {
    for (bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      TrainConfig config = base();
      config.optimizer = "sgd";
      config.momentum = momentum;
      config.nesterov = nesterov;
      auto options = torch::optim::SGDOptions(1e-2).momentum(momentum).nesterov(nesterov).weight_decay(0.1);
      EXPECT_LT((compare<torch::optim::SGD>(config, options)), kTolerance)
          << "momentum " << momentum << " nesterov " << nesterov;
    }
  }
}

}  // namespace
}  // namespace tutti
