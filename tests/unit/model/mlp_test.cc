#include "model/mlp.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "model/make_model.h"
#include "support/flat_model.h"
#include "tensor/kernels.h"

namespace tutti {

namespace {

Job mlp_job() {
  Job job;
  job.model.kind = "mlp";
  job.model.inputs = 3;
  job.model.hidden = {17, 5};
  job.model.classes = 4;
  job.model.activation = "gelu";
  job.model.norm = "none";
  job.model.init = "he-uniform";
  job.loss.kind = "cross-entropy";
  job.data.kind = "points";
  job.train.micro_batch_size = 6;
  job.numerics.isa = supported(Isa::kAvx512) ? "avx512" : "avx2";
  job.numerics.matmul = "mkl";
  return job;
}

}  // namespace

TEST(Mlp, HasABlockPerLayerAndAHead) {
  const ModelShape shape = describe(make_model(mlp_job()));
  ASSERT_EQ(shape.blocks.size(), 3u);
  EXPECT_EQ(shape.blocks[0].parameters[0].name, "layers.0.weight");
  EXPECT_EQ(shape.blocks[0].parameters[0].dims, (std::vector<int64_t>{17, 3}));
  EXPECT_EQ(shape.blocks[1].parameters[1].name, "layers.1.bias");
  EXPECT_EQ(shape.blocks[2].parameters[0].name, "head.weight");
  EXPECT_EQ(shape.blocks[2].segments.size(), 2u);
  EXPECT_EQ(shape.blocks[0].segments[0].flops, 2.0 * 6 * 3 * 17);
}

TEST(Mlp, GradientsEqualOneGraphOverTheWholeModelBitForBit) {
  for (const char* gelu : {"gelu", "gelu-tanh"}) {
    Job job = mlp_job();
    job.model.activation = gelu;
    FlatModel flat(make_model(job), 11);
    const at::Tensor features = at::arange(18, at::kFloat).mul(0.7).sin().reshape({6, 3});
    const at::Tensor targets = at::arange(6, at::kLong).remainder(4);
    const std::vector<at::Tensor> data{features, targets};
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);

    std::vector<at::Tensor> p;
    for (int b = 0; b < 3; ++b)
      for (int i = 0; i < 2; ++i) p.push_back(flat.value(b, i).clone().requires_grad_());
    const std::string kind = std::string(gelu) == "gelu-tanh" ? "tanh" : "none";
    at::Tensor x = at::gelu(at::linear(features, p[0], p[1]), kind);
    x = at::gelu(at::linear(x, p[2], p[3]), kind);
    x = at::linear(x, p[4], p[5]);
    const at::Tensor loss = at::cross_entropy_loss(x, targets, {}, at::Reduction::Sum);
    const auto grads = torch::autograd::grad({loss}, p);
    EXPECT_TRUE(at::equal(flat.runner->border("logits"), x));
    EXPECT_EQ(flat.runner->loss().count, 6);
    EXPECT_NEAR(flat.runner->loss().sum, loss.item<double>(), 1e-5) << "float32 against float64";
    for (int b = 0; b < 3; ++b)
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(flat.gradient(b, i), grads[2 * b + i])) << b << " " << i;
  }
}

TEST(MakeModel, RefusesKindsItCannotBuild) {
  Job job = mlp_job();
  job.model.kind = "custom";
  EXPECT_THROW(make_model(job), Error);
  job.model.kind = "nothing";
  EXPECT_THROW(make_model(job), Error);
}

}  // namespace tutti
