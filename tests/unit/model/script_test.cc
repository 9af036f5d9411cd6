#include "model/adapt/script.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/make_model.h"
#include "support/flat_model.h"
#include "support/logit_gradient.h"

namespace tutti {

namespace {

class File {
 public:
  explicit File(const std::string& name)
      : path(std::filesystem::temp_directory_path() /
             fmt::format("tutti_{}_{}.pt", ::getpid(), name)) {}
  ~File() { std::filesystem::remove(path); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string path;
};

at::Tensor numbers(const std::vector<int64_t>& dims, double phase) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return at::arange(count, at::kFloat).mul(1.37).add(phase).sin().reshape(dims);
}

// Features of 3, one hidden layer of 8, 4 classes; a submodule, so that names have two parts.
torch::jit::Module small_module() {
  torch::jit::Module module("net"), layer("layer");
  layer.register_parameter("weight", numbers({8, 3}, 1).requires_grad_(), false);
  layer.register_parameter("bias", numbers({8}, 2).requires_grad_(), false);
  layer.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_module("layer1", layer);
  module.register_parameter("head", numbers({4, 8}, 3).requires_grad_(), false);
  return module;
}

void save(torch::jit::Module module, const std::string& body, const File& file) {
  module.define("def forward(self, x):\n" + body);
  module.save(file.path);
}

Job job_of(const std::string& path) {
  Job job;
  job.model.kind = "script";
  job.model.path = path;
  job.model.inputs = 3;
  job.model.classes = job.model.outputs = 4;
  job.data.kind = "points";
  job.loss.kind = "cross-entropy";
  job.train.micro_batch_size = 6;
  return job;
}

std::string refusal(const Job& job) {
  try {
    make_model(job);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const char* const kForward =
    "  return torch.linear(torch.relu(self.layer1.forward(x)), self.head)\n";

}  // namespace

TEST(Script, ParametersKeepTheirNamesAndStartWithTheFilesValues) {
  const File file("names");
  save(small_module(), kForward, file);
  const FlatModel flat(make_model(job_of(file.path)), 1);
  const auto& parameters = flat.shape.blocks[0].parameters;
  ASSERT_EQ(parameters.size(), 3u);
  std::map<std::string, at::Tensor> values;
  for (int i = 0; i < 3; ++i) values[parameters[i].name] = flat.value(0, i);
  ASSERT_TRUE(values.contains("script.layer1.weight"));
  EXPECT_TRUE(at::equal(values["script.layer1.weight"], numbers({8, 3}, 1)));
  EXPECT_TRUE(at::equal(values["script.layer1.bias"], numbers({8}, 2)));
  EXPECT_TRUE(at::equal(values["script.head"], numbers({4, 8}, 3)));
}

TEST(Script, TrainsAsAutogradOverTheSameOperatorsBitForBit) {
  const File file("train");
  save(small_module(), kForward, file);
  FlatModel flat(make_model(job_of(file.path)), 1);
  std::map<std::string, int> place;
  for (int i = 0; i < 3; ++i) place[flat.shape.blocks[0].parameters[i].name] = i;
  at::Tensor w = numbers({8, 3}, 1), b = numbers({8}, 2), head = numbers({4, 8}, 3);
  const at::Tensor features = numbers({6, 3}, 5), targets = at::arange(6, at::kLong).remainder(4);
  const std::vector<at::Tensor> data{features, targets};
  double first = 0, last = 0;
  // enough for torch's profiling executor to rewrite the graph, if it were on
  for (int step = 0; step < 20; ++step) {
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);
    (step == 0 ? first : last) = flat.runner->loss().sum;

    for (at::Tensor* p : {&w, &b, &head}) *p = p->detach().requires_grad_();
    const at::Tensor logits = at::linear(at::relu(at::linear(features, w, b)), head);
    const auto grads =
        torch::autograd::grad({logits}, {w, b, head}, {logit_gradient(logits, targets)});
    int next = 0;
    for (auto [name, p] : {std::pair{"script.layer1.weight", &w},
                           {"script.layer1.bias", &b},
                           {"script.head", &head}}) {
      ASSERT_TRUE(at::equal(flat.gradient(0, place[name]), grads[next]))
          << name << " in step " << step;
      flat.value(0, place[name]).sub_(flat.gradient(0, place[name]), 0.05);
      *p = p->detach().sub(grads[next++], 0.05);
    }
  }
  EXPECT_LT(last, 0.7 * first);
}

TEST(Script, BuffersThatForwardChangesAreMeanBuffersAndOthersStay) {
  torch::jit::Module module = small_module();
  module.register_buffer("mean", at::zeros({8}));
  module.register_buffer("var", at::ones({8}));
  module.register_buffer("shift", at::ones({3}).mul(0.1));
  module.register_buffer("seen", at::zeros({}, at::kLong));
  const File file("buffers");
  save(std::move(module),
       "  h = self.layer1.forward(x + self.shift)\n"
       "  if self.training:\n"
       "    self.seen = self.seen + 1\n"
       "  h = torch.batch_norm(h, None, None, self.mean, self.var, self.training, 0.1, 0.00001, "
       "False)\n"
       "  return torch.linear(h, self.head)\n",
       file);
  FlatModel flat(make_model(job_of(file.path)), 1);
  const auto& parameters = flat.shape.blocks[0].parameters;
  ASSERT_EQ(parameters.size(), 5u);
  EXPECT_EQ(parameters[3].name, "script.mean");
  EXPECT_EQ(parameters[4].name, "script.var");
  EXPECT_EQ(parameters[3].role, Role::kMeanBuffer);
  EXPECT_TRUE(at::equal(flat.value(0, 3), at::zeros({8})))
      << "the pass that looked for them left no trace";

  const at::Tensor features = numbers({6, 3}, 5);
  const std::vector<at::Tensor> data{features, at::arange(6, at::kLong).remainder(4)};
  const at::Tensor hidden = at::linear(features + 0.1, numbers({8, 3}, 1), numbers({8}, 2));
  at::Tensor mean = at::zeros({8}), var = at::ones({8});
  at::batch_norm(hidden, {}, {}, mean, var, true, 0.1, 1e-5, false);
  for (int round = 0; round < 3; ++round) {
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);
    EXPECT_TRUE(at::equal(flat.gradient(0, 3), mean));
    EXPECT_TRUE(at::equal(flat.gradient(0, 4), var));
  }
  Pass evaluation;
  evaluation.training = false;
  flat.value(0, 3).copy_(mean);
  flat.value(0, 4).copy_(var);
  flat.runner->forward_all(evaluation, data);
  const at::Tensor expected = at::linear(
      at::batch_norm(hidden, {}, {}, mean, var, false, 0.1, 1e-5, false), numbers({4, 8}, 3));
  EXPECT_TRUE(at::equal(flat.runner->border("logits"), expected));
}

TEST(Script, DrawsAreNoticedAndReseededForEveryMicroBatch) {
  const File file("draws"), quiet("quiet");
  save(small_module(),
       "  h = torch.relu(self.layer1.forward(x))\n"
       "  h = torch.dropout(torch.sigmoid(h * 2) * torch.sigmoid(h) + h, 0.5, self.training)\n"
       "  return torch.linear(torch.tanh(h) * h, self.head)\n",
       file);
  save(small_module(), kForward, quiet);
  EXPECT_FALSE(make_model(job_of(quiet.path)).blocks[0].segments[0]->draws());
  FlatModel flat(make_model(job_of(file.path)), 1);
  EXPECT_TRUE(flat.model.blocks[0].segments[0]->draws());
  const std::vector<at::Tensor> data{numbers({6, 3}, 5), at::arange(6, at::kLong).remainder(4)};
  at::Tensor first, first_gradient;
  // after a run torch's profiling executor would rewrite the graph
  for (int round = 0; round < 5; ++round) {
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);
    if (round == 0)
      first = flat.runner->border("logits").clone(), first_gradient = flat.gradient(0, 0).clone();
    EXPECT_TRUE(at::equal(flat.runner->border("logits"), first)) << round;
    EXPECT_TRUE(at::equal(flat.gradient(0, 0), first_gradient)) << round;
  }
  Pass next;
  next.step = 1;
  flat.runner->forward_all(next, data);
  EXPECT_FALSE(at::equal(flat.runner->border("logits"), first));
}

TEST(Script, WhatCannotBeTrainedIsRefusedByTheFilesName) {
  const File file("refused");
  const auto refused = [&](const std::string& why) {
    const std::string text = refusal(job_of(file.path));
    EXPECT_NE(text.find(file.path), std::string::npos) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  refused("there is no such file");
  std::ofstream(file.path) << "nothing that torch wrote";
  refused("is no TorchScript file");
  small_module().save(file.path);
  refused("has no method forward");
  save(small_module(), "  return self.layer1.forward(x)\n", file);
  refused("returned logits Float [6, 8]; the job wants logits Float [6, 4]");
  save(small_module(), "  return (x, x)\n", file);
  refused("not a tensor");
  save(small_module(), "  return torch.linear(x, self.head)\n", file);
  refused("forward failed");
  save(torch::jit::Module("empty"), "  return x\n", file);
  refused("no parameters");
  torch::jit::Module doubled("net");
  doubled.register_parameter("weight", numbers({4, 3}, 1).to(at::kDouble).requires_grad_(), false);
  save(doubled, "  return torch.linear(x, self.weight.float())\n", file);
  refused("not float32");
  torch::jit::Module frozen("net");
  frozen.register_parameter("weight", numbers({4, 3}, 1), false);
  save(frozen, "  return torch.linear(x, self.weight)\n", file);
  refused("weight is frozen");
  EXPECT_NE(refusal(job_of("")).find("name a TorchScript file"), std::string::npos);
}

}  // namespace tutti
