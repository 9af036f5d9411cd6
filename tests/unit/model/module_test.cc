// The only test that includes torch's layers: they take long to compile.
#include "model/module.h"

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
  Pair() : left(register_module("left", nn::Linear(3, 2))), right(register_module("right", nn::Linear(3, 2))) {}
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
  const Block block =
      adapt("net", nn::Sequential(nn::Linear(3, 4), nn::LayerNorm(nn::LayerNormOptions({4})), nn::GELU()),
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
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(mine.gradients[i], parameters[i].grad())) << i;
}

TEST(Module, TakesItsValuesFromTheUnitsMemoryAtEveryPass) {
  const Block block = adapt("net", nn::Linear(3, 4), {{"x", {5, 3}}}, {{"y", {5, 4}}});
  Tensors1 mine(block);
  mine.forward();
  const at::Tensor before = mine.out[0].clone();
  mine.parameters[0].data_ptr<float>()[0] += 1;  // as an optimizer does
  mine.forward();
  EXPECT_FALSE(at::equal(before, mine.out[0]));
  EXPECT_TRUE(at::equal(mine.out[0], at::linear(mine.in[0], mine.parameters[0], mine.parameters[1])));
}

TEST(Module, SeveralInputsAndOutputsGoByTheirOrder) {
  const Block block =
      adapt("pair", std::make_shared<Pair>(), {{"a", {5, 3}}, {"b", {5, 3}}}, {{"s", {5, 2}}, {"r", {5, 2}}});
  Tensors1 mine(block);
  mine.run();
  EXPECT_TRUE(at::equal(mine.out[1], at::linear(mine.in[0], mine.parameters[2], mine.parameters[3])));
  EXPECT_TRUE(at::allclose(mine.grad_in[1], mine.grad_out[0].mm(mine.parameters[2])));
  const Block wrong = adapt("pair", std::make_shared<Pair>(), {{"a", {5, 3}}}, {{"s", {5, 2}}, {"r", {5, 2}}});
  EXPECT_NE(refusal(wrong).find("forward does not take 1 tensors"), std::string::npos) << refusal(wrong);
}

TEST(Module, ABufferChangedInForwardIsRefused) {
  const Block tracked = adapt("norm", nn::BatchNorm1d(3), {{"x", {5, 3}}}, {{"y", {5, 3}}});
  EXPECT_NE(refusal(tracked).find("buffer running_mean changed in forward"), std::string::npos) << refusal(tracked);
  const Block plain = adapt("norm", nn::BatchNorm1d(nn::BatchNorm1dOptions(3).track_running_stats(false)),
                            {{"x", {5, 3}}}, {{"y", {5, 3}}});
  EXPECT_EQ(refusal(plain), "");
}

TEST(Module, DropoutMustBeDeclaredAndIsOffInEvaluation) {
  const std::vector<Border> x{{"x", {8, 8}}};
  EXPECT_NE(refusal(adapt("drop", nn::Dropout(0.5), x, x)).find("draws from torch's generator"), std::string::npos);
  EXPECT_EQ(refusal(adapt("drop", nn::Dropout(0.0), x, x)), "") << "dropout of nothing draws nothing";
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
