// Against torch::optim in the same process. The one test file of this folder that pays for torch's
// optimizer headers.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <random>

#include "optim/optimizer.h"

namespace tutti {
namespace {

constexpr int64_t kSize = 1003;
constexpr int kSteps = 50;
constexpr float kScale = 0.25f;  // a power of two, so that torch gets the very same gradients
constexpr float kClip = 0.3f;    // of |gradient| x kScale: cuts about a quarter of them

/// The largest error of an element after 50 steps of both on the same gradients, as a part of the
/// way it went: |ours - theirs| / (|start| + the sum of |moves|). A small value at the end of a
/// long way carries the way's roundings.
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
  const float* values = theirs.const_data_ptr<float>();
  std::vector<double> way(kSize);
  for (int64_t i = 0; i < kSize; ++i) way[i] = std::abs(values[i]);

  auto optimizer = make_optimizer(config);
  std::vector<std::vector<float>> kept(optimizer->slots().size(), std::vector<float>(kSize));
  std::vector<float*> slots;
  slots.reserve(kept.size());
  for (auto& slot : kept) slots.push_back(slot.data());
  for (int step = 0; step < kSteps; ++step) {
    for (float& x : gradient) x = normal(generator);
    float* torch_gradient = theirs.mutable_grad().mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSize; ++i)
      torch_gradient[i] = std::clamp(gradient[i] * kScale, -kClip, kClip);
    const std::vector<float> before(values, values + kSize);
    torch_optimizer.step();
    for (int64_t i = 0; i < kSize; ++i) way[i] += std::abs(values[i] - before[i]);
    optimizer->update(ours.data(), gradient.data(), slots, kSize,
                      {.step = step,
                       .lr = config.lr,
                       .gradient_scale = kScale,
                       .clip_value = kClip,
                       .weight_decay = config.weight_decay});
  }
  double worst = 0;
  for (int64_t i = 0; i < kSize; ++i)
    worst = std::max(worst, std::abs(double{ours[i]} - values[i]) / way[i]);
  return worst;
}

TrainConfig base(const char* optimizer, double weight_decay) {
  TrainConfig config{};
  config.optimizer = optimizer;
  config.lr = 1e-2;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = weight_decay;
  return config;
}

// Both round each operation to float but ours fuses multiply and add: about a unit in the last
// place (6e-8) a step, 50 steps, in no direction of preference.
constexpr double kTolerance = 1e-6;

TEST(AgainstTorch, AdamwStaysWithTorchForFiftySteps) {
  for (double decay : {0.0, 0.1}) {
    auto options =
        torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
    EXPECT_LT((compare<torch::optim::AdamW>(base("adamw", decay), options)), kTolerance)
        << "decay " << decay;
  }
}

TEST(AgainstTorch, AdamStaysWithTorchForFiftySteps) {
  for (double decay : {0.0, 0.1}) {
    auto options = torch::optim::AdamOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
    EXPECT_LT((compare<torch::optim::Adam>(base("adam", decay), options)), kTolerance)
        << "decay " << decay;
  }
}

TEST(AgainstTorch, AdagradStaysWithTorchForFiftySteps) {
  for (double decay : {0.0, 0.1}) {
    auto options = torch::optim::AdagradOptions(1e-2).eps(1e-8).weight_decay(decay);
    EXPECT_LT((compare<torch::optim::Adagrad>(base("adagrad", decay), options)), kTolerance)
        << "decay " << decay;
  }
}

TEST(AgainstTorch, RmspropStaysWithTorchForFiftySteps) {
  for (double decay : {0.0, 0.1}) {
    for (double momentum : {0.0, 0.9}) {
      TrainConfig config = base("rmsprop", decay);
      config.momentum = momentum;
      auto options =
          torch::optim::RMSpropOptions(1e-2).alpha(0.95).eps(1e-8).weight_decay(decay).momentum(
              momentum);
      EXPECT_LT((compare<torch::optim::RMSprop>(config, options)), kTolerance)
          << "decay " << decay << " momentum " << momentum;
    }
  }
}

TEST(AgainstTorch, SgdStaysWithTorchForFiftySteps) {
  for (double decay : {0.0, 0.1}) {
    for (double momentum : {0.0, 0.9}) {
      for (bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        TrainConfig config = base("sgd", decay);
        config.momentum = momentum;
        config.nesterov = nesterov;
        auto options =
            torch::optim::SGDOptions(1e-2).momentum(momentum).nesterov(nesterov).weight_decay(
                decay);
        EXPECT_LT((compare<torch::optim::SGD>(config, options)), kTolerance)
            << "decay " << decay << " momentum " << momentum << " nesterov " << nesterov;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
