#include "model/adapt/adaptor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "model/core/wiring.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

// Values that are neither round nor equal.
at::Tensor numbers(const std::vector<int64_t>& dims, double phase) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return at::arange(count, at::kFloat).mul(0.37).add(phase).sin().reshape(dims).contiguous();
}

Block linear_gelu() {
  return adapt("layer",
               {{"weight", {5, 3}, {}, {}}, {"bias", {5}, {}, {}}, {"unused", {2}, {}, {}}},
               [](Tensors p, Tensors in) {
                 return std::vector<at::Tensor>{at::gelu(at::linear(in[0], p[0], p[1]))};
               },
               {{"x", {7, 3}}}, {{"y", {7, 5}}});
}

// The tensors of one segment, filled with rubbish where it has to write.
struct Bench {
  explicit Bench(Block b) : block(std::move(b)) {
    for (const Parameter& p : block.parameters) {
      parameters.push_back(numbers(p.dims, static_cast<double>(parameters.size()) + 1));
      gradients.push_back(at::full_like(parameters.back(), 99));
    }
    for (const Border& border : block.segments[0]->inputs()) {
      in.push_back(floating(border) ? numbers(border.dims, 5)
                                    : at::zeros(border.dims, border.type));
      grad_in.push_back(floating(border) ? at::full_like(in.back(), 99) : at::Tensor());
    }
    saved.resize(block.segments[0]->saved_bytes());
    work.resize(block.segments[0]->work_bytes());
    for (const Border& border : block.segments[0]->outputs()) {
      out.push_back(at::zeros(border.dims, border.type).fill_(99));
      grad_out.push_back(border.name == "loss" ? at::Tensor() : numbers(border.dims, 9));
    }
  }
  void forward() {
    Context context{pass, parameters, {}, saved, work, kept};
    block.segments[0]->forward(context, in, out);
  }
  void backward() {
    Context context{pass, parameters, gradients, saved, work, kept};
    block.segments[0]->backward(context, in, out, grad_out, grad_in);
  }
  std::string refusal() {
    try {
      forward();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  Block block;
  Pass pass;
  std::vector<at::Tensor> parameters, gradients, in, out, grad_in, grad_out;
  std::vector<std::byte> saved, work;
  std::shared_ptr<void> kept;
};

}  // namespace

TEST(Adaptor, AFunctionsGradientsEqualPlainAutogradBitForBit) {
  Bench bench(linear_gelu());
  bench.forward();
  bench.backward();

  const at::Tensor x = bench.in[0].clone().requires_grad_(),
                   w = bench.parameters[0].clone().requires_grad_(),
                   b = bench.parameters[1].clone().requires_grad_();
  const at::Tensor y = at::gelu(at::linear(x, w, b));
  const auto grads = torch::autograd::grad({y}, {w, b, x}, {bench.grad_out[0]});
  EXPECT_TRUE(at::equal(bench.out[0], y));
  EXPECT_TRUE(at::equal(bench.gradients[0], grads[0]));
  EXPECT_TRUE(at::equal(bench.gradients[1], grads[1]));
  EXPECT_TRUE(at::equal(bench.grad_in[0], grads[2]));
}

TEST(Adaptor, AnUnusedParameterGetsZeros) {
  Bench bench(linear_gelu());
  bench.forward();
  bench.backward();
  EXPECT_TRUE(at::equal(bench.gradients[2], at::zeros_like(bench.gradients[2])));
}

TEST(Adaptor, TheGraphIsKeptInTrainingOnlyAndGivenBackByBackward) {
  Bench bench(linear_gelu());
  bench.pass.training = false;
  bench.forward();
  EXPECT_EQ(bench.kept, nullptr);
  bench.pass.training = true;
  bench.forward();
  EXPECT_NE(bench.kept, nullptr);
  bench.backward();
  EXPECT_EQ(bench.kept, nullptr);
}

TEST(Adaptor, GradInMayBeTheMemoryOfGradOut) {
  Bench bench(adapt("sum", {},
                    [](Tensors, Tensors in) { return std::vector<at::Tensor>{in[0] * 3 + in[1]}; },
                    {{"a", {4}}, {"b", {4}}}, {{"y", {4}}}));
  const at::Tensor grad = bench.grad_out[0].clone();
  bench.grad_in[0] = bench.grad_out[0];
  bench.forward();
  bench.backward();
  EXPECT_TRUE(at::equal(bench.grad_in[0], grad * 3));
  EXPECT_TRUE(at::equal(bench.grad_in[1], grad))
      << "b's gradient is grad_out itself, which a's has overwritten";
}

TEST(Adaptor, OutputsOtherThanDeclaredAreRefusedByName) {
  Bench bench(
      adapt("wrong", {},
            [](Tensors, Tensors in) { return std::vector<at::Tensor>{in[0].to(at::kDouble)}; },
            {{"a", {4}}}, {{"y", {4}}}));
  EXPECT_EQ(bench.refusal(), "segment wrong returned y Double [4]; declared is y Float [4]");
}

TEST(Adaptor, DrawsThatAreNotDeclaredAreRefused) {
  const auto drop = [](Tensors, Tensors in) {
    return std::vector<at::Tensor>{at::dropout(in[0], 0.5, true)};
  };
  Bench bench(adapt("noisy", {}, drop, {{"a", {64}}}, {{"y", {64}}}));
  EXPECT_NE(bench.refusal().find("segment noisy draws from torch's generator"), std::string::npos)
      << bench.refusal();
}

TEST(Adaptor, DeclaredDrawsDependOnSeedStepLaneMicroAndBlockAlone) {
  const auto drop = [](Tensors, Tensors in) {
    return std::vector<at::Tensor>{at::dropout(in[0], 0.5, true)};
  };
  AdaptOptions options;
  options.draws = true;
  Bench bench(adapt("noisy", {}, drop, {{"a", {64}}}, {{"y", {64}}}, options));
  const auto at_pass = [&](Pass pass) {
    bench.pass = pass;
    bench.forward();
    return bench.out[0].clone();
  };
  const Pass base{3, 4, 5, 6, 0, 7, true};
  const at::Tensor first = at_pass(base);
  for (int which = 0; which < 5; ++which) {
    Pass other = base;
    which == 0   ? void(++other.seed)
    : which == 1 ? void(++other.step)
    : which == 2 ? void(++other.lane)
    : which == 3 ? void(++other.micro)
                 : void(++other.block);
    EXPECT_FALSE(at::equal(first, at_pass(other))) << which;
  }
  EXPECT_TRUE(at::equal(first, at_pass(base)));
  Model model;
  model.blocks.push_back(std::move(bench.block));
  EXPECT_THROW(check_thread_ranks(model), Error);
}

TEST(Adaptor, OnlyWhatSaysSoIsCapturedAndNeverWhatDraws) {
  const auto identity = [](Tensors, Tensors in) { return std::vector<at::Tensor>{in[0].clone()}; };
  const auto captures = [&](AdaptOptions options) {
    return adapt("x", {}, identity, {{"x", {2}}}, {{"y", {2}}}, std::move(options))
        .segments[0]
        ->captures();
  };
  AdaptOptions options;
  EXPECT_FALSE(captures(options));
  options.captures = true;
  EXPECT_TRUE(captures(options));
  options.draws = true;
  EXPECT_FALSE(captures(options));
}

TEST(Adaptor, ALossStartsBackwardWithTheScaleThatIsGiven) {
  Block block = adapt("loss", {},
                      [](Tensors, Tensors in) {
                        return std::vector<at::Tensor>{
                            at::stack({in[0].to(at::kDouble).sum(), at::ones({}, at::kDouble)})};
                      },
                      {{"x", {3}}}, {{"loss", {2}, at::kDouble}});
  Bench bench(std::move(block));
  bench.forward();
  bench.backward();
  EXPECT_TRUE(at::equal(bench.grad_in[0], at::ones({3})));
  const at::Tensor scale = at::tensor({1024.0, 0.0}, at::kDouble);
  bench.forward();
  Context context{bench.pass,  bench.parameters, bench.gradients,
                  bench.saved, bench.work,       bench.kept};
  context.loss_scale = scale.const_data_ptr<double>();
  bench.block.segments[0]->backward(context, bench.in, bench.out, bench.grad_out, bench.grad_in);
  EXPECT_TRUE(at::equal(bench.grad_in[0], at::ones({3}) * 1024));
}

TEST(Adaptor, InitsAreChosenByNameAndUnknownNamesAreRefused) {
  AdaptOptions options;
  options.init["bias"] = {Init::Kind::kConstant, 2};
  const auto nothing = [](Tensors, Tensors in) { return std::vector<at::Tensor>{in[0]}; };
  const Block block =
      adapt("a", {{"bias", {5}, {}, {}}}, nothing, {{"x", {1}}}, {{"x", {1}}}, options);
  EXPECT_EQ(block.parameters[0].init.kind, Init::Kind::kConstant);
  options.init["bais"] = {};
  EXPECT_THROW(adapt("a", {{"bias", {5}, {}, {}}}, nothing, {{"x", {1}}}, {{"x", {1}}}, options),
               Error);
}

TEST(Adaptor, AFunctionProposesWhatItMakesOfItsBuffers) {
  Bench bench(adapt("norm",
                    {{"mean", {3}, {}, {}, Role::kMeanBuffer},
                     {"scale", {3}, {}, {}},
                     {"count", {1}, {}, {}, Role::kSumBuffer}},
                    [](Tensors p, Tensors in) {
                      p[0].mul_(0.5).add_(in[0].detach().mean(0), 0.5);
                      p[2].add_(7);
                      return std::vector<at::Tensor>{(in[0] - p[0]) * p[1]};
                    },
                    {{"x", {4, 3}}}, {{"y", {4, 3}}}));
  const at::Tensor mean = bench.parameters[0].clone(), count = bench.parameters[2].clone();
  bench.forward();
  bench.backward();
  EXPECT_TRUE(at::equal(bench.parameters[0], mean)) << "the unit's value is not touched";
  EXPECT_TRUE(at::equal(bench.parameters[2], count));
  const at::Tensor proposed = mean * 0.5 + bench.in[0].mean(0) * 0.5;
  EXPECT_TRUE(at::allclose(bench.gradients[0], proposed, 1e-6, 1e-7))
      << "another order of roundings";
  EXPECT_TRUE(at::equal(bench.gradients[2], (count + 7) - count));
  EXPECT_TRUE(at::allclose(bench.gradients[1],
                           ((bench.in[0] - proposed) * bench.grad_out[0]).sum(0), 1e-5, 1e-6));
  AdaptOptions options;
  options.buffers["*"] = Role::kMeanBuffer;
  EXPECT_THROW(adapt(
                   "a", {}, [](Tensors, Tensors in) { return std::vector<at::Tensor>{in[0]}; },
                   {{"x", {1}}}, {{"x", {1}}}, options),
               Error);
}

TEST(CrossEntropy, EqualsTorchsSumAndSkipsIgnoredTargets) {
  Bench bench(cross_entropy_block("loss", {"logits", {2, 4, 6}}, {"targets", {2, 4}, at::kLong}));
  bench.in[1] = at::tensor(std::vector<int64_t>{0, 5, kIgnoredTarget, 2, 1, kIgnoredTarget, 3, 3})
                    .reshape({2, 4});
  bench.forward();
  bench.backward();

  const at::Tensor x = bench.in[0].clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(x.reshape({8, 6}), bench.in[1].reshape({8}), {},
                                                 at::Reduction::Sum, -1);
  const at::Tensor grad = torch::autograd::grad({loss}, {x})[0];
  EXPECT_NEAR(bench.out[0][0].item<double>(), loss.item<double>(), 1e-6 * loss.item<double>())
      << "float32 against float64";
  EXPECT_EQ(bench.out[0][1].item<double>(), 6);
  EXPECT_LE((bench.grad_in[0] - grad).abs().max().item<double>(), 2e-7) << "of at most 1";
}

TEST(CrossEntropy, RefusesTargetsOfAnotherShape) {
  EXPECT_THROW(cross_entropy_block("loss", {"logits", {4, 6}}, {"targets", {6}, at::kLong}), Error);
  EXPECT_THROW(cross_entropy_block("loss", {"logits", {4, 6}}, {"targets", {4}}), Error);
}

}  // namespace tutti
