// What the GPT promises by itself: repeatable bits, keyed dropout, gradients that are the loss's
// slope, refusals.
#include <ATen/ops/equal.h>

#include <cstring>

#include "base/error.h"
#include "model/gpt/gpt_shape.h"
#include "tensor/allocator.h"
#include "unit/model/support/gpt_case.h"

namespace tutti::test {
namespace {

CodePath isa() { return fastest_path(); }

bool same(const GptCase& a, const GptCase& b) {
  for (size_t i = 0; i < a.grads.size(); ++i) {
    for (const ParameterShape& p : a.shape.blocks[i].parameters) {
      if (std::memcmp(a.grads[i] + p.offset, b.grads[i] + p.offset,
                      static_cast<size_t>(p.size) * sizeof(float)) != 0)
        return false;
    }
  }
  return true;
}

TEST(Gpt, RunTwiceGivesEqualBitsWithDropoutToo) {
  for (ModelConfig c : {small_gpt(), small_llama()}) {
    c.dropout = 0.1;
    GptCase a(c, isa()), b(c, isa());
    const double first = a.forward().sum;
    a.backward();
    EXPECT_EQ(b.forward().sum, first);
    b.backward();
    EXPECT_TRUE(same(a, b));
    EXPECT_EQ(a.forward().sum, first) << "the same runner, used again";
  }
}

/// The CPU's kernels with fused products that are made of them, as a device has them in one kernel.
/// They count.
int fused_calls = 0;
Kernels with_fused_products() {
  Kernels table = kernels(isa());
  table.fused.linear = [](const float* x, const float* weight, const float* bias,
                          const float* residual, float* y, int64_t rows, int64_t out, int64_t in) {
    const Kernels& k = kernels(isa());
    ++fused_calls;
    std::vector<float> work(static_cast<size_t>(k.matmul.work(rows, out, in)));
    k.matmul.nt(x, weight, y, rows, out, in, work.data());
    if (residual != nullptr) {
      k.bias_residual(y, bias, residual, y, rows, out, nullptr);
    } else if (bias != nullptr) {
      k.add_bias(y, bias, rows, out);
    }
    return true;
  };
  table.fused.linear_activation = [](const float* x, const float* weight, const float* bias,
                                     float* left, float* active, int64_t rows, int64_t out,
                                     int64_t in, Activation kind) {
    const Kernels& k = kernels(isa());
    ++fused_calls;
    std::vector<float> work(static_cast<size_t>(k.matmul.work(rows, out, in)));
    k.matmul.nt(x, weight, left, rows, out, in, work.data());
    k.bias_activation(left, bias, active, rows, out, kind);
    return true;
  };
  table.fused.linear_activation_backward = [](const float* dy, const float* weight,
                                              const float* left, float* dleft, int64_t rows,
                                              int64_t out, int64_t in, Activation kind) {
    const Kernels& k = kernels(isa());
    ++fused_calls;
    std::vector<float> work(static_cast<size_t>(k.matmul.work(rows, in, out)));
    k.matmul.nn(dy, weight, dleft, rows, in, out, work.data());
    k.activation_backward(dleft, left, dleft, nullptr, rows, in, kind);
    return true;
  };
  return table;
}

// A bias's gradient is then a sum of its own over the same rows, in another order.
TEST(Gpt, FusedProductsAreAskedForTheSameLayers) {
  const Kernels fused = with_fused_products();
  for (ModelConfig c : {small_gpt(), small_llama()}) {
    for (const double dropout : {0.0, 0.1}) {
      c.dropout = dropout;
      GptCase apart(c, isa()), together(gpt_job(c, GptCase::kBatch), fused);
      fused_calls = 0;
      EXPECT_EQ(together.forward().sum, apart.forward().sum);
      together.backward();
      apart.backward();
      expect_same_gradients(together, apart, 1e-6);
      const bool biased = c.bias, gated = c.activation == Activation::kSwiglu;
      const int64_t residuals = dropout == 0 ? 2 : 0,
                    of_layer = (biased ? 1 : 0) + residuals + (gated ? 0 : 2);
      EXPECT_EQ(fused_calls, c.layers * of_layer);
    }
  }
}

TEST(Gpt, AConsumedBorderLeavesTheBitsAndTakesLessMemory) {
  ModelConfig c = small_gpt();
  c.vocab = 300;      // the logits are the widest border
  Accounts accounts;  // outlives the runner
  GptCase kept(c, isa()), consumed(c, isa());
  RunnerOptions options;
  options.consume = true;
  consumed.runner = std::make_unique<ModelRunner>(consumed.model, consumed.shape, consumed.units,
                                                  accounts, options);
  EXPECT_LT(accounts.peak(BufferKind::kBorder), kept.accounts.peak(BufferKind::kBorder));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(consumed.forward().sum, kept.forward().sum);
    consumed.backward();
    kept.backward();
    EXPECT_TRUE(same(consumed, kept));
    // An evaluation in between finds its logits.
    kept.pass.training = consumed.pass.training = false;
    EXPECT_EQ(consumed.forward().sum, kept.forward().sum);
    EXPECT_TRUE(at::equal(consumed.runner->border("logits"), kept.runner->border("logits")));
    kept.pass.training = consumed.pass.training = true;
  }
}

TEST(Gpt, DropoutDependsOnStepAndSampleAndOnNeitherLaneNorMicroBatch) {
  ModelConfig c = small_gpt();
  c.dropout = 0.1;
  GptCase gpt(c, isa());
  const double first = gpt.forward().sum;
  gpt.pass.lane = 3;
  gpt.pass.micro = 2;
  EXPECT_EQ(gpt.forward().sum, first);
  gpt.pass.step += 1;
  EXPECT_NE(gpt.forward().sum, first);
  gpt.pass.step -= 1;
  gpt.pass.first_sample += 1;
  EXPECT_NE(gpt.forward().sum, first);
}

TEST(Gpt, EvaluationDropsNothing) {
  ModelConfig c = small_gpt();
  GptCase plain(c, isa());
  c.dropout = 0.5;
  GptCase dropped(c, isa());
  EXPECT_NE(dropped.forward().sum, plain.forward().sum);
  plain.pass.training = dropped.pass.training = false;
  EXPECT_EQ(dropped.forward().sum, plain.forward().sum);
}

// Central differences of a float32 loss of about 20: the step of 1e-2 leaves an error of about 1e-3
// from rounding and curvature.
void expect_slopes(ModelConfig c) {
  c.layers = 1;
  c.width = 8;
  c.context = 5;
  c.vocab = 6;
  GptCase gpt(c, isa());
  gpt.forward();
  gpt.backward();
  for (size_t block = 0; block < gpt.units.size(); ++block) {
    for (const ParameterShape& p : gpt.shape.blocks[block].parameters) {
      double top = 0.5;
      for (int64_t i = 0; i < p.size; ++i)
        top = std::max(top, std::abs(static_cast<double>(gpt.grads[block][p.offset + i])));
      for (int64_t i = 0; i < p.size; i += std::max<int64_t>(1, p.size / 5)) {
        float& value = gpt.units[block][p.offset + i];
        const float kept = value;
        value = kept + 1e-2f;
        const double up = gpt.forward().sum;
        value = kept - 1e-2f;
        const double down = gpt.forward().sum;
        value = kept;
        EXPECT_NEAR((up - down) / 2e-2 / top, gpt.grads[block][p.offset + i] / top, 1e-2)
            << p.name << " " << i;
      }
    }
  }
}

TEST(Gpt, GradientsAreTheSlopeOfTheLoss) {
  expect_slopes(small_gpt());
  expect_slopes(small_llama());
}

/// Whether ATen allocates in a pass after the first.
bool allocates(const ModelConfig& config, MatmulKind matmul) {
  install_accounting_allocator();
  GptCase gpt(config, isa(), matmul);
  for (int i = 0; i < 2; ++i) {
    gpt.accounts.reset_peaks();
    gpt.forward();
    gpt.backward();
  }
  bool any = false;
  for (int k = 0; k < kBufferKinds; ++k) {
    const auto kind = static_cast<BufferKind>(k);
    any = any || gpt.accounts.peak(kind) != gpt.accounts.current(kind);
  }
  return any;
}

TEST(Gpt, ASecondStepAllocatesNothing) {
  ModelConfig c = small_gpt();
  c.dropout = 0.1;
  EXPECT_FALSE(allocates(c, MatmulKind::kOwn));
  EXPECT_FALSE(allocates(c, MatmulKind::kMkl));
  EXPECT_FALSE(allocates(small_llama(), MatmulKind::kOwn));
  c.autograd = true;
  EXPECT_TRUE(allocates(c, MatmulKind::kOwn)) << "autograd does, and this would show it";
}

TEST(Gpt, TargetsBelowZeroAreNotCounted) {
  GptCase gpt(small_gpt(), isa());
  gpt.targets.fill_(-1);
  const Loss loss = gpt.forward();
  EXPECT_EQ(loss.sum, 0);
  EXPECT_EQ(loss.count, 0);
  gpt.backward();
  for (const ParameterShape& p : gpt.shape.blocks[1].parameters)
    EXPECT_EQ(gpt.grads[1][p.offset], 0) << p.name;
}

TEST(Gpt, ATokenOutsideOfTheVocabularyIsNamed) {
  GptCase gpt(small_gpt(), isa());
  gpt.tokens.mutable_data_ptr<int64_t>()[4] = 29;
  try {
    gpt.forward();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "token 4 is 29, outside of the model's vocabulary of 29");
  }
}

TEST(Gpt, ParametersAreNamedCountedAndInitialisedAsTheReferenceModels) {
  ModelConfig c = small_gpt();
  c.layers = 6;
  c.width = 384;
  c.heads = 6;
  c.context = 256;
  c.vocab = 256;
  c.init_scale = 0.02;
  c.scaled_residual = true;
  const Model model = make_gpt(gpt_job(c, 8), kernels(isa()));
  const ModelShape shape = describe(model);
  // tokens and positions; per layer 12 d^2 + 13 d; final norm, head with bias
  EXPECT_EQ(shape.parameter_count(),
            2 * 256 * 384 + 6 * (12 * 384 * 384 + 13 * 384) + 2 * 384 + 256 * 384 + 256);
  const std::vector<Parameter>& layer = model.blocks[3].parameters;
  const GptLayerPlaces places = gpt_layer_places(gpt_shape(c, 8));
  EXPECT_EQ(model.blocks[3].name, "blocks.2");
  EXPECT_EQ(layer[places.qkv.weight].name, "qkv.weight");
  EXPECT_EQ(layer[places.qkv.weight].dims, (std::vector<int64_t>{1152, 384}));
  EXPECT_DOUBLE_EQ(layer[places.qkv.weight].init.scale, 0.02);
  EXPECT_DOUBLE_EQ(layer[places.proj.weight].init.scale, 0.02 / std::sqrt(12.0));
  EXPECT_DOUBLE_EQ(layer[places.fc2.weight].init.scale, 0.02 / std::sqrt(12.0));
  int64_t saved = 0;
  double flops = 0;
  for (const auto& segment : model.blocks[3].segments) saved += segment->saved_bytes();
  for (const Block& block : model.blocks) {
    for (const auto& segment : block.segments) flops += segment->flops();
  }
  EXPECT_LT(saved, int64_t{15} * 2048 * 384 * 4) << "14 widths a row, statistics, log-sum-exps";
  EXPECT_NEAR(flops, 2.0 * 2048 * (6 * 12 * 384 * 384 + 384 * 256) + 6 * 2.0 * 2048 * 257 * 384,
              1e6);
}

TEST(Gpt, ATiedHeadSharesTheTokenTable) {
  ModelConfig c = small_gpt();
  c.tied = true;
  const Model model = make_gpt(gpt_job(c, 2), kernels(isa()));
  const auto& head = model.blocks.back().parameters;
  ASSERT_EQ(head.size(), 3u);
  EXPECT_EQ(head[2].shared_with, "embed/tok.weight");
}

std::vector<std::string> names(const Model& model, size_t block) {
  std::vector<std::string> all;
  for (const Parameter& p : model.blocks[block].parameters) all.push_back(p.name);
  return all;
}

TEST(Gpt, OfLlamasOptionsHasNoPositionsNoBiasesAndFewerKeys) {
  ModelConfig c = small_llama();
  c.width = 64;
  const Model model = make_gpt(gpt_job(c, 2), kernels(isa()));
  EXPECT_EQ(names(model, 0), std::vector<std::string>{"tok.weight"});
  EXPECT_EQ(names(model, 1),
            (std::vector<std::string>{"norm1.weight", "qkv.weight", "proj.weight", "norm2.weight",
                                      "fc1.weight", "fc2.weight"}));
  EXPECT_EQ(names(model, 3), (std::vector<std::string>{"norm.weight", "head.weight"}));
  const auto& layer = model.blocks[1].parameters;
  EXPECT_EQ(layer[1].dims, (std::vector<int64_t>{64 + 2 * 32, 64}))
      << "four heads of queries, two of keys and values";
  EXPECT_EQ(layer[4].dims, (std::vector<int64_t>{2 * 176, 64}))
      << "8/3 of 64 is 170.7, of 16s 176; gate and up";
  EXPECT_EQ(layer[5].dims, (std::vector<int64_t>{64, 176}));
  c.mlp_width = 50;
  c.activation = Activation::kRelu;
  c.bias = true;
  const Model other = make_gpt(gpt_job(c, 2), kernels(isa()));
  EXPECT_EQ(names(other, 1),
            (std::vector<std::string>{"norm1.weight", "qkv.weight", "qkv.bias", "proj.weight",
                                      "proj.bias", "norm2.weight", "fc1.weight", "fc1.bias",
                                      "fc2.weight", "fc2.bias"}))
      << "an RMS norm has no bias";
  EXPECT_EQ(other.blocks[1].parameters[6].dims, (std::vector<int64_t>{50, 64}));
}

TEST(Gpt, RefusesSizesThatDoNotMakeOne) {
  const auto message = [](auto change) {
    ModelConfig c = small_llama();
    change(c);
    try {
      make_gpt(gpt_job(c, 2), kernels(isa()));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](ModelConfig& c) { c.heads = 3; }),
            "model.width = 32 cannot be cut into model.heads = 3");
  EXPECT_EQ(message([](ModelConfig& c) { c.kv_heads = 3; }),
            "model.heads = 4 cannot be cut into groups for model.kv_heads = 3");
  EXPECT_EQ(message([](ModelConfig& c) { c.width = 20; }),
            "model.positions = \"rotary\" turns pairs, but a head has 5 elements");
  EXPECT_EQ(message([](ModelConfig& c) { c.norm = NormKind::kBatch; }),
            "model.norm = \"batch\" but model.kind = \"gpt\": it has layer or rms");
}

}  // namespace
}  // namespace tutti::test
