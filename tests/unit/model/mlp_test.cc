// The multilayer perceptron and its dense layers against plain ATen in the same process.
#include "model/dense/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "model/make_model.h"
#include "unit/model/support/named_case.h"

namespace tutti {
namespace {

using namespace named_case;  // NOLINT(google-build-using-namespace)

Job mlp_job() {
  return resolved(R"(
[model]
kind = "mlp"
inputs = 3
hidden = [17, 5]
classes = 4
init = "he-uniform"
[data]
kind = "points"
[train]
micro_batch_size = 6
)");
}

const std::map<std::string, std::function<at::Tensor(const at::Tensor&)>> kActivations = {
    {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
    {"gelu-tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
    {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
    {"leaky-relu", [](const at::Tensor& x) { return at::leaky_relu(x); }},
    {"elu", [](const at::Tensor& x) { return at::elu(x); }}};

/// The norms as their papers write them.
at::Tensor normed(const std::string& norm, const at::Tensor& x,
                  const std::map<std::string, at::Tensor>& p, const std::string& layer) {
  const auto of = [&](const char* name) { return p.at(layer + ".norm." + name); };
  if (norm == "layer") {
    const at::Tensor centred = x - x.mean(1, true);
    return centred * (centred * centred).mean(1, true).add(1e-5).rsqrt() * of("weight") +
           of("bias");
  }
  if (norm == "rms") return x * (x * x).mean(1, true).add(1e-5).rsqrt() * of("weight");
  if (norm == "batch") {
    const at::Tensor centred = x - x.mean(0, true);
    return centred * (centred * centred).mean(0, true).add(1e-5).rsqrt() * of("weight") +
           of("bias");
  }
  return x;
}

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

TEST(Mlp, GradientsAreThoseOfOneGraphOverTheWholeModel) {
  for (const auto& [name, activation] : kActivations) {
    Job job = mlp_job();
    job.model.activation = value_named<Activation>(name).value();
    FlatModel flat(make_model(job), 11);
    const std::vector<at::Tensor> data{wave({6, 3}, 0), at::arange(6, at::kLong).remainder(4)};
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);

    std::vector<at::Tensor> p;
    for (int b = 0; b < 3; ++b)
      for (int i = 0; i < 2; ++i) p.push_back(flat.value(b, i).clone().requires_grad_());
    at::Tensor x = activation(at::linear(data[0], p[0], p[1]));
    x = activation(at::linear(x, p[2], p[3]));
    x = at::linear(x, p[4], p[5]);
    const at::Tensor loss = at::cross_entropy_loss(x, data[1], {}, at::Reduction::Sum);
    const auto grads = torch::autograd::grad({loss}, p);
    // The same operations, each rounded in its own way.
    EXPECT_TRUE(near(flat.runner->border("logits"), x, 1e-6)) << name;
    EXPECT_EQ(flat.runner->loss().count, 6);
    EXPECT_NEAR(flat.runner->loss().sum, loss.item<double>(), 1e-5) << "float32 against float64";
    for (int b = 0; b < 3; ++b)
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(near(flat.gradient(b, i), grads[2 * b + i], 1e-5))
            << name << " " << b << " " << i;
  }
}

TEST(Mlp, EveryNormIsTheFormulaOfItsPaper) {
  for (const char* norm : {"none", "layer", "rms", "batch"}) {
    SCOPED_TRACE(norm);
    Job job = mlp_job();
    job.model.norm = value_named<NormKind>(norm).value();
    job.model.activation = Activation::kTanh;
    FlatModel flat(make_model(job), 11);
    stir(flat);
    std::map<std::string, at::Tensor> p;
    std::vector<std::string> names;
    std::vector<at::Tensor> leaves;
    for (const BlockShape& block : flat.shape.blocks)
      for (const ParameterShape& parameter : block.parameters) {
        p[parameter.name] = leaf(flat, parameter.name);
        if (parameter.role != Role::kTrained) continue;
        names.push_back(parameter.name);
        leaves.push_back(p[parameter.name]);
      }
    const std::vector<at::Tensor> data{wave({6, 3}, 0, 2), at::arange(6, at::kLong).remainder(4)};
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);

    at::Tensor x = data[0];
    std::vector<at::Tensor> before_norm;
    for (const std::string layer : {"layers.0", "layers.1"}) {
      before_norm.push_back(at::linear(x, p[layer + ".weight"], p[layer + ".bias"]));
      x = normed(norm, before_norm.back(), p, layer).tanh();
    }
    x = at::linear(x, p["head.weight"], p["head.bias"]);
    const auto grads =
        torch::autograd::grad({at::cross_entropy_loss(x, data[1], {}, at::Reduction::Sum)}, leaves);
    // The same sums in another order, of float32 numbers of about 1.
    EXPECT_TRUE(near(flat.runner->border("logits"), x, 1e-5));
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(near(gradient(flat, names[i]), grads[i], 2e-4)) << names[i];
    if (std::string(norm) != "batch") continue;
    for (size_t l = 0; l < 2; ++l) {  // what a micro-batch proposes for its buffers
      const std::string layer = "layers." + std::to_string(l) + ".norm.";
      const at::Tensor mean = before_norm[l].mean(0), centred = before_norm[l] - mean;
      EXPECT_TRUE(near(gradient(flat, layer + "mean"),
                       value(flat, layer + "mean") * 0.9 + mean * 0.1, 1e-5));
      EXPECT_TRUE(near(gradient(flat, layer + "variance"),
                       value(flat, layer + "variance") * 0.9 + (centred * centred).sum(0) / 5 * 0.1,
                       1e-5));
    }
  }
}

TEST(Mlp, BatchNormUsesItsBuffersInEvaluationAndLeavesThemAlone) {
  Job job = mlp_job();
  job.model.norm = NormKind::kBatch;
  job.model.hidden = {17};
  job.model.activation = Activation::kTanh;
  FlatModel flat(make_model(job), 11);
  stir(flat);
  const at::Tensor mean = value(flat, "layers.0.norm.mean").clone(),
                   variance = value(flat, "layers.0.norm.variance").clone();
  const std::vector<at::Tensor> data{wave({6, 3}, 0, 2), at::arange(6, at::kLong).remainder(4)};
  Pass pass;
  pass.training = false;
  flat.runner->forward_all(pass, data);
  const at::Tensor y =
      at::linear(data[0], value(flat, "layers.0.weight"), value(flat, "layers.0.bias"));
  const at::Tensor expected =
      ((y - mean) * (variance + 1e-5).rsqrt() * value(flat, "layers.0.norm.weight") +
       value(flat, "layers.0.norm.bias"))
          .tanh();
  EXPECT_TRUE(near(flat.runner->border("hidden"), expected, 1e-5));  // float32 numbers of about 1
  EXPECT_TRUE(at::equal(value(flat, "layers.0.norm.mean"), mean));
  EXPECT_TRUE(at::equal(value(flat, "layers.0.norm.variance"), variance));
}

TEST(Mlp, BatchNormOfASingleSampleIsRefused) {
  Job job = mlp_job();
  job.model.norm = NormKind::kBatch;
  job.train.micro_batch_size = 1;
  EXPECT_THROW(make_model(job), Error);
}

/// The zeros that dropout makes in the last hidden layer: sigmoid has none of its own.
std::vector<bool> dropped(int64_t rows, int64_t first_sample, const std::vector<int64_t>& hidden,
                          int64_t step = 3) {
  Job job = mlp_job();
  job.model.hidden = hidden;
  job.model.activation = Activation::kSigmoid;
  job.model.dropout = 0.4;
  job.train.micro_batch_size = rows;
  FlatModel flat(make_model(job), 11);
  const at::Tensor all = wave({64, 3}, 0);
  const std::vector<at::Tensor> data{all.narrow(0, first_sample - 40, rows).contiguous(),
                                     at::arange(rows, at::kLong).remainder(4)};
  Pass pass{7, step, 0, 0, first_sample, 0, false};
  flat.runner->forward_all(pass, data);
  const at::Tensor whole = flat.runner->border("hidden").clone();
  pass.training = true;
  flat.runner->forward_all(pass, data);
  const at::Tensor some = flat.runner->border("hidden");
  std::vector<bool> zeros;
  const auto* w = whole.const_data_ptr<float>();
  const auto* s = some.const_data_ptr<float>();
  for (int64_t i = 0; i < some.numel(); ++i) {
    zeros.push_back(s[i] == 0);
    // With one layer what is kept is the same number, enlarged; one rounding.
    if (s[i] != 0 && hidden.size() == 1) EXPECT_NEAR(s[i], w[i] / 0.6, 1e-6);
  }
  return zeros;
}

TEST(Mlp, DropoutIsKeyedByTheSampleWhateverItsMicroBatch) {
  const std::vector<bool> expected = dropped(12, 40, {33});
  for (int64_t rows : {1, 3, 4, 6}) {
    std::vector<bool> pieces;
    for (int64_t first = 40; first < 52; first += rows) {
      const std::vector<bool> piece = dropped(rows, first, {33});
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(pieces, expected) << rows;
  }
  const auto zeros = std::count(expected.begin(), expected.end(), true);
  EXPECT_NEAR(static_cast<double>(zeros), 0.4 * 12 * 33, 40);  // four deviations of 396 keyed draws
  EXPECT_NE(dropped(12, 40, {33}, 4), expected);
  EXPECT_NE(dropped(12, 52, {33}), expected);
  EXPECT_NE(dropped(12, 40, {33, 33}), expected) << "the second layer has a mask of its own";
}

TEST(Mlp, DropoutsGradientIsThatOfItsMask) {
  Job job = mlp_job();
  job.model.hidden = {33};
  job.model.activation = Activation::kSigmoid;
  job.model.dropout = 0.4;
  FlatModel flat(make_model(job), 11);
  const std::vector<at::Tensor> data{wave({6, 3}, 0), at::arange(6, at::kLong).remainder(4)};
  const Pass pass{7, 3, 0, 0, 40, 0, true};
  flat.runner->forward_all(pass, data);
  const at::Tensor mask = flat.runner->border("hidden").ne(0).to(at::kFloat) / 0.6;
  flat.runner->backward_all(pass, data, flat.gradient_pointers);
  std::vector<at::Tensor> p;
  for (const char* name : {"layers.0.weight", "layers.0.bias", "head.weight", "head.bias"})
    p.push_back(leaf(flat, name));
  const at::Tensor x = at::linear(at::linear(data[0], p[0], p[1]).sigmoid() * mask, p[2], p[3]);
  const auto grads =
      torch::autograd::grad({at::cross_entropy_loss(x, data[1], {}, at::Reduction::Sum)}, p);
  EXPECT_TRUE(near(gradient(flat, "layers.0.weight"), grads[0], 1e-5));  // float32 in another order
  EXPECT_TRUE(near(gradient(flat, "head.weight"), grads[2], 1e-5));
}

TEST(Mlp, ARegressionHasOutputsInPlaceOfClasses) {
  Job job = mlp_job();
  job.loss.kind = "mse";
  job.model.outputs = 2;
  const Model model = make_model(job);
  EXPECT_EQ(model.task, Task::kValues);
  FlatModel flat(make_model(job), 11);
  const std::vector<at::Tensor> data{wave({6, 3}, 0), wave({6, 2}, 1)};
  flat.runner->forward_all({}, data);
  const at::Tensor& output = flat.runner->border("logits");
  EXPECT_EQ(output.sizes().vec(), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(flat.runner->loss().count, 12);
  EXPECT_NEAR(flat.runner->loss().sum,
              at::mse_loss(output, data[1], at::Reduction::Sum).item<double>(), 1e-5);
  job.loss.kind = "bce";
  EXPECT_EQ(make_model(job).task, Task::kBinary);
}

TEST(MakeModel, RefusesKindsItCannotBuild) {
  Job job = mlp_job();
  job.model.kind = "custom";
  EXPECT_THROW(make_model(job), Error);
  job.model.kind = "perceptron";
  EXPECT_THROW(make_model(job), Error);
}

}  // namespace
}  // namespace tutti
