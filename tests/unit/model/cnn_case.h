// A CNN with its memory and one micro-batch, for the tests that run it whole.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "model/cnn.h"
#include "model/runner.h"
#include "tensor/kernels.h"

namespace tutti::test {

inline Job small_cnn() {
  Job job;
  job.model.kind = "cnn";
  job.model.image = {1, 12, 12};
  job.model.channels = {16, 24};
  job.model.depth = 1;
  job.model.residual = true;
  job.model.pool = "max";
  job.model.norm = "batch";
  job.model.activation = "relu";
  job.model.classes = 5;
  job.model.init = "he-normal";
  job.loss.kind = "cross-entropy";
  job.train.micro_batch_size = 6;
  job.numerics.isa = "avx2";
  job.numerics.matmul = "own";
  return job;
}

class CnnCase {
 public:
  explicit CnnCase(const Job& job) : model(make_cnn(job)), shape(describe(model)) {
    at::set_num_threads(1);
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      const BlockShape& block = shape.blocks[b];
      values.push_back(at::zeros({block.unit_size}, at::kFloat));
      gradients.push_back(at::zeros({block.gradient_size}, at::kFloat));
      float* unit = values.back().mutable_data_ptr<float>();
      for (size_t i = 0; i < block.parameters.size(); ++i) {
        const ParameterShape& p = block.parameters[i];
        initialise(model.blocks[b].parameters[i], p.name, 3, {unit + p.offset, static_cast<size_t>(p.size)});
        if (p.dims.size() > 1) continue;
        // Norms, biases and buffers away from their start, so that no gradient is zero by symmetry.
        for (int64_t e = 0; e < p.size; ++e)
          unit[p.offset + e] += 0.3f * static_cast<float>(philox_uniform({3, Purpose::kTest, b, i}, e));
      }
      units.push_back(unit);
      grads.push_back(gradients.back().mutable_data_ptr<float>());
    }
    const std::vector<int64_t>& image = job.model.image;
    const int64_t batch = job.train.micro_batch_size;
    images = at::empty({batch, image[0], image[1], image[2]}, at::kFloat);
    for (int64_t i = 0; i < images.numel(); ++i)
      images.mutable_data_ptr<float>()[i] = static_cast<float>(philox_normal({4, Purpose::kTest, 0, 0}, i));
    targets = at::empty({batch}, at::kLong);
    for (int64_t i = 0; i < batch; ++i)
      targets.mutable_data_ptr<int64_t>()[i] =
          i == 1 ? -1 : static_cast<int64_t>(philox_below({4, Purpose::kTest, 1, 0}, i, job.model.classes));
    runner = std::make_unique<ModelRunner>(model, shape, units, accounts);
  }

  Loss forward(bool training = true) {
    pass.training = training;
    runner->forward_all(pass, std::vector<at::Tensor>{images, targets});
    return runner->loss();
  }
  void backward() {
    for (at::Tensor& g : gradients) g.fill_(77);  // what is not written shows
    runner->backward_all(pass, std::vector<at::Tensor>{images, targets}, grads);
  }

  Model model;
  ModelShape shape;
  std::vector<at::Tensor> values, gradients;
  std::vector<float*> units, grads;
  at::Tensor images, targets;
  Accounts accounts;
  Pass pass{.seed = 5, .step = 12, .lane = 0, .micro = 0, .first_sample = 40};
  std::unique_ptr<ModelRunner> runner;
};

}  // namespace tutti::test
