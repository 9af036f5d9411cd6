// A model with its memory and one micro-batch, for tests that run a hand-written model whole
// alongside its autograd twin.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/core/runner.h"

namespace tutti::test {

class TwinCase {
 public:
  /// The units are zeros: whoever derives fills them, then calls start().
  explicit TwinCase(Model given) : model(std::move(given)), shape(describe(model)) {
    at::set_num_threads(1);
    for (const BlockShape& block : shape.blocks) {
      values.push_back(at::zeros({block.unit_size}, at::kFloat));
      gradients.push_back(at::zeros({block.gradient_size}, at::kFloat));
      units.push_back(values.back().mutable_data_ptr<float>());
      grads.push_back(gradients.back().mutable_data_ptr<float>());
    }
  }
  void start(std::vector<at::Tensor> tensors) {
    data = std::move(tensors);
    runner = std::make_unique<ModelRunner>(model, shape, units, accounts);
  }

  Loss forward() {
    runner->forward_all(pass, data);
    return runner->loss();
  }
  void backward() {
    for (at::Tensor& g : gradients) g.fill_(77);  // what is not written shows
    runner->backward_all(pass, data, grads);
  }

  Model model;
  ModelShape shape;
  std::vector<at::Tensor> values, gradients, data;
  std::vector<float*> units, grads;
  Accounts accounts;
  Pass pass{.seed = 5, .step = 12, .lane = 0, .micro = 0, .first_sample = 40};
  std::unique_ptr<ModelRunner> runner;
};

/// Every gradient, those of a shared parameter's further users included, to `tolerance` of its
/// largest value.
inline void expect_same_gradients(const TwinCase& ours, const TwinCase& twin, double tolerance) {
  ASSERT_EQ(ours.shape.blocks.size(), twin.shape.blocks.size());
  for (size_t block = 0; block < ours.shape.blocks.size(); ++block) {
    const auto compare_range = [&](const std::string& name, int64_t offset, int64_t size) {
      double worst = 0, top = 1e-30;
      for (int64_t i = offset; i < offset + size; ++i) {
        const double x = ours.grads[block][i], y = twin.grads[block][i];
        ASSERT_TRUE(std::isfinite(x)) << name;
        worst = std::max(worst, std::abs(x - y));
        top = std::max(top, std::abs(y));
      }
      EXPECT_LT(worst / top, tolerance) << name;
      EXPECT_NE(top, 77) << name << " was not written";
    };
    for (const ParameterShape& p : ours.shape.blocks[block].parameters) {
      compare_range(p.name, p.offset, p.size);
      for (const int64_t extra : p.extra_gradients)
        compare_range(p.name + " of a further user", extra, p.size);
    }
  }
}

}  // namespace tutti::test
