// The only test that includes torch's layers: they take long to compile.
#include "model/adapt/module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "base/error.h"

namespace tutti {

namespace {

namespace nn = torch::nn;

struct Pair : nn::Module {
  Pair()
      : left(register_module("left", nn::Linear(3, 2))),
        right(register_module("right", nn::Linear(3, 2))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) {
    return {left(a) + right(b), right(a)};
  }
  nn::Linear left, right;
};

// Random numbers for one pass of a block's only segment.
struct Tensors1 {
  explicit Tensors1(const Block& block) : segment(*block.segments[0]) {
    for (const Parameter& p : block.parameters) {
      parameters.push_back(at::randn(p.dims));
      gradients.push_back(at::full(p.dims, 99.0));
    }
    for (const Border& b : segment.inputs()) {
      in.push_back(at::randn(b.dims));
      grad_in.push_back(at::full(b.dims, 99.0));
    }
    for (const Border& b : segment.outputs()) {
      out.push_back(at::full(b.dims, 99.0));
      grad_out.push_back(at::randn(b.dims));
    }
  }
  void forward() {
    Context context{pass, parameters, {}, {}, {}, kept};
    segment.forward(context, in, out);
  }
  void run() {
    forward();
    Context context{pass, parameters, gradients, {}, {}, kept};
    segment.backward(context, in, out, grad_out, grad_in);
  }
  const Segment& segment;
  Pass pass;
  std::vector<at::Tensor> parameters, gradients, in, out, grad_in, grad_out;
  std::shared_ptr<void> kept;
};

std::string refusal(const Block& block) {
  try {
    Tensors1(block).forward();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Module, ParametersKeepTheirNamesAndGetInitsByKind) {
  const Block block = adapt(
      "net", nn::Sequential(nn::Linear(3, 4), nn::LayerNorm(nn::LayerNormOptions({4})), nn::GELU()),
      {{"x", {2, 3}}}, {{"y", {2, 4}}});
  ASSERT_EQ(block.parameters.size(), 4u);
  EXPECT_EQ(block.parameters[0].name, "0.weight");
  EXPECT_EQ(block.parameters[0].dims, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(block.parameters[0].init.kind, Init::Kind::kHeUniform);
  EXPECT_EQ(block.parameters[1].name, "0.bias");
  EXPECT_EQ(block.parameters[1].init.kind, Init::Kind::kZeros);
  EXPECT_EQ(block.parameters[2].name, "1.weight");
  EXPECT_EQ(block.parameters[2].init.kind, Init::Kind::kOnes);
  EXPECT_EQ(block.parameters[3].init.kind, Init::Kind::kZeros);
}

TEST(Module, GradientsEqualThoseOfTheBareModuleBitForBit) {
  const auto make = [] { return nn::Sequential(nn::Linear(3, 4), nn::GELU(), nn::Linear(4, 2)); };
  const Block block = adapt("net", make(), {{"x", {5, 3}}}, {{"y", {5, 2}}});
  Tensors1 mine(block);
  mine.run();
  mine.run();  // again: nothing is added to what was there

  nn::Sequential bare = make();
  const auto parameters = bare->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(mine.parameters[i].clone());
  const at::Tensor x = mine.in[0].clone().requires_grad_();
  const at::Tensor y = bare->forward(x);
  y.backward(mine.grad_out[0]);
  EXPECT_TRUE(at::equal(mine.out[0], y));
  EXPECT_TRUE(at::equal(mine.grad_in[0], x.grad()));
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(at::equal(mine.gradients[i], parameters[i].grad())) << i;
}

TEST(Module, TakesItsValuesFromTheUnitsMemoryAtEveryPass) {
  const Block block = adapt("net", nn::Linear(3, 4), {{"x", {5, 3}}}, {{"y", {5, 4}}});
  Tensors1 mine(block);
  mine.forward();
  const at::Tensor before = mine.out[0].clone();
  mine.parameters[0].data_ptr<float>()[0] += 1;  // as an optimizer does
  mine.forward();
  EXPECT_FALSE(at::equal(before, mine.out[0]));
  EXPECT_TRUE(
      at::equal(mine.out[0], at::linear(mine.in[0], mine.parameters[0], mine.parameters[1])));
}

TEST(Module, SeveralInputsAndOutputsGoByTheirOrder) {
  const Block block = adapt("pair", std::make_shared<Pair>(), {{"a", {5, 3}}, {"b", {5, 3}}},
                            {{"s", {5, 2}}, {"r", {5, 2}}});
  Tensors1 mine(block);
  mine.run();
  EXPECT_TRUE(
      at::equal(mine.out[1], at::linear(mine.in[0], mine.parameters[2], mine.parameters[3])));
  EXPECT_TRUE(at::allclose(mine.grad_in[1], mine.grad_out[0].mm(mine.parameters[2])));
  const Block wrong =
      adapt("pair", std::make_shared<Pair>(), {{"a", {5, 3}}}, {{"s", {5, 2}}, {"r", {5, 2}}});
  EXPECT_NE(refusal(wrong).find("forward does not take 1 tensors"), std::string::npos)
      << refusal(wrong);
}

TEST(Module, ABufferChangedInForwardIsRefused) {
  const Block tracked = adapt("norm", nn::BatchNorm1d(3), {{"x", {5, 3}}}, {{"y", {5, 3}}});
  EXPECT_NE(refusal(tracked).find("buffer running_mean changed in forward"), std::string::npos)
      << refusal(tracked);
  EXPECT_NE(refusal(tracked).find("AdaptOptions::buffers"), std::string::npos);
  const Block plain =
      adapt("norm", nn::BatchNorm1d(nn::BatchNorm1dOptions(3).track_running_stats(false)),
            {{"x", {5, 3}}}, {{"y", {5, 3}}});
  EXPECT_EQ(refusal(plain), "");
}

// Two micro-batches from the same running statistics; the commit averages their proposals.
TEST(Module, BatchNormProposesTorchsOwnUpdateForEveryMicroBatch) {
  const auto check = [](const Block& block, const auto& torchs, const std::vector<int64_t>& dims) {
    ASSERT_EQ(block.parameters.size(), 4u) << "num_batches_tracked is no state";
    EXPECT_EQ(block.parameters[2].name, "running_mean");
    EXPECT_EQ(block.parameters[2].role, Role::kMeanBuffer);
    EXPECT_EQ(*block.parameters[3].init.values, std::vector<float>(3, 1.0f))
        << "it starts as the module has it";
    Tensors1 mine(block);
    mine.parameters[3].abs_();
    const at::Tensor mean = mine.parameters[2].clone(), var = mine.parameters[3].clone();
    at::Tensor mean_sum = at::zeros({3}), var_sum = at::zeros({3}), expected_mean = at::zeros({3}),
               expected_var = at::zeros({3});
    for (int micro = 0; micro < 2; ++micro) {
      mine.in[0] = at::randn(dims);
      mine.run();
      mean_sum += mine.gradients[2];
      var_sum += mine.gradients[3];

      auto bare = torchs();
      bare->weight.set_data(mine.parameters[0].clone());
      bare->bias.set_data(mine.parameters[1].clone());
      bare->running_mean.copy_(mean);
      bare->running_var.copy_(var);
      const at::Tensor x = mine.in[0].clone().requires_grad_();
      const at::Tensor y = bare->forward(x);
      y.backward(mine.grad_out[0]);
      EXPECT_TRUE(at::equal(mine.out[0], y));
      EXPECT_TRUE(at::equal(mine.gradients[0], bare->weight.grad()));
      EXPECT_TRUE(at::equal(mine.gradients[1], bare->bias.grad()));
      EXPECT_TRUE(at::equal(mine.grad_in[0], x.grad()));
      expected_mean += bare->running_mean;
      expected_var += bare->running_var;
    }
    EXPECT_TRUE(at::equal(mine.parameters[2], mean))
        << "the unit's value changes at the commit only";
    EXPECT_TRUE(at::equal(mean_sum / 2, expected_mean / 2));
    EXPECT_TRUE(at::equal(var_sum / 2, expected_var / 2));

    mine.pass.training = false;
    mine.parameters[2].copy_(expected_mean / 2);  // the commit
    mine.parameters[3].copy_(expected_var / 2);
    mine.forward();
    const at::Tensor bare =
        at::batch_norm(mine.in[0], mine.parameters[0], mine.parameters[1], expected_mean / 2,
                       expected_var / 2, false, 0.1, 1e-5, false);
    EXPECT_TRUE(at::equal(mine.out[0], bare)) << "evaluation reads the unit's statistics";
  };
  AdaptOptions all, by_name;
  all.buffers = {{"*", Role::kMeanBuffer}};
  by_name.buffers = {{"running_mean", Role::kMeanBuffer}, {"running_var", Role::kMeanBuffer}};
  nn::BatchNorm1d flat(3);
  check(adapt("norm", flat, {{"x", {5, 3}}}, {{"y", {5, 3}}}, all),
        [] { return nn::BatchNorm1d(3); }, {5, 3});
  EXPECT_EQ(flat->num_batches_tracked.item<int64_t>(), 0) << "whole numbers keep their value";
  check(adapt("norm", nn::BatchNorm2d(3), {{"x", {2, 3, 4, 4}}}, {{"y", {2, 3, 4, 4}}}, by_name),
        [] { return nn::BatchNorm2d(3); }, {2, 3, 4, 4});
}

TEST(Module, ASumBufferProposesItsChange) {
  struct Counting : nn::Module {
    Counting() : seen(register_buffer("seen", at::full({1}, 5.0f))) {}
    at::Tensor forward(const at::Tensor& x) {
      if (is_training()) seen.add_(static_cast<double>(x.size(0)));
      return x * 2;
    }
    at::Tensor seen;
  };
  AdaptOptions options;
  options.buffers = {{"seen", Role::kSumBuffer}};
  const Block block =
      adapt("count", std::make_shared<Counting>(), {{"x", {3}}}, {{"y", {3}}}, options);
  EXPECT_EQ(*block.parameters[0].init.values, std::vector<float>{5});
  Tensors1 mine(block);
  mine.parameters[0].fill_(100);
  for (int micro = 0; micro < 2; ++micro) {
    mine.run();
    EXPECT_EQ(mine.gradients[0].item<float>(), 3);
  }
  EXPECT_EQ(mine.parameters[0].item<float>(), 100);
}

TEST(Module, BuffersThatAreNotThereOrNotFloatAreRefused) {
  const auto declare = [](const std::string& name) -> std::string {
    AdaptOptions options;
    options.buffers = {{name, Role::kMeanBuffer}};
    try {
      adapt("norm", nn::BatchNorm1d(3), {{"x", {5, 3}}}, {{"y", {5, 3}}}, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(declare("runing_mean").find("did you mean running_mean?"), std::string::npos)
      << declare("runing_mean");
  EXPECT_NE(declare("num_batches_tracked").find("not float32"), std::string::npos);
}

TEST(Module, DropoutMustBeDeclaredAndIsOffInEvaluation) {
  const std::vector<Border> x{{"x", {8, 8}}};
  EXPECT_NE(refusal(adapt("drop", nn::Dropout(0.5), x, x)).find("draws from torch's generator"),
            std::string::npos);
  EXPECT_EQ(refusal(adapt("drop", nn::Dropout(0.0), x, x)), "")
      << "dropout of nothing draws nothing";
  AdaptOptions options;
  options.draws = true;
  const Block block = adapt("drop", nn::Dropout(0.5), x, x, options);
  Tensors1 mine(block);
  mine.run();
  EXPECT_FALSE(at::equal(mine.out[0], mine.in[0]));
  mine.pass.training = false;
  mine.forward();
  EXPECT_TRUE(at::equal(mine.out[0], mine.in[0]));
}

TEST(Module, FrozenAndDoubleParametersAreRefused) {
  nn::Linear frozen(3, 3), twice(3, 3);
  frozen->weight.set_requires_grad(false);
  twice->to(at::kDouble);
  EXPECT_THROW(adapt("a", frozen, {{"x", {2, 3}}}, {{"y", {2, 3}}}), Error);
  EXPECT_THROW(adapt("a", twice, {{"x", {2, 3}}}, {{"y", {2, 3}}}), Error);
}

}  // namespace tutti
