// Gradients through buffers that a program names, against ModelRunner's, bit for bit.
#include "model/core/plan_runner.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "model/adapt/module.h"
#include "model/loss/loss.h"
#include "model/make_model.h"
#include "tensor/allocator.h"
#include "unit/model/support/named_case.h"
#include "unit/model/support/plan_case.h"

namespace tutti {

namespace {

using named_case::resolved, named_case::stir;
using List = std::vector<at::Tensor>;

Job gpt_job(bool autograd) {
  Job job = resolved(R"(
[model]
kind = "gpt"
layers = 2
width = 32
heads = 2
context = 24
vocab = 29
dropout = 0.1
tied = true
[data]
kind = "walk"
[train]
micro_batch_size = 2
)");
  job.model.autograd = autograd;
  return job;
}

Job mlp_job() {
  return resolved(R"(
[model]
kind = "mlp"
inputs = 3
hidden = [17, 5]
classes = 4
[data]
kind = "points"
[train]
micro_batch_size = 6
)");
}

// A module's parameters are its own tensors, bound to the unit's memory.
Model module_model() {
  const Border x{"x", {6, 3}}, y{"y", {6, 7}}, logits{"logits", {6, 4}},
      targets{"targets", {6}, at::kLong};
  Model model;
  model.data = {x, targets};
  model.blocks.push_back(adapt("first", torch::nn::Linear(3, 7), {x}, {y}));
  model.blocks.push_back(adapt("second", torch::nn::Linear(7, 4), {y}, {logits}));
  model.blocks.push_back(cross_entropy_block("loss", logits, targets));
  return model;
}

// Through ModelRunner: what a micro-batch's gradients are.
void expect_like_model_runner(FlatModel& flat, PlanCase& plan, const std::vector<List>& data) {
  for (int m = 0; m < static_cast<int>(data.size()); ++m) {
    flat.runner->forward_all(PlanCase::pass(m), data[m]);
    flat.runner->backward_all(PlanCase::pass(m), data[m], flat.gradient_pointers);
    plan.expect_gradients(m, flat.gradient_pointers);
    EXPECT_EQ(plan.loss(m).sum, flat.runner->loss().sum);
    EXPECT_EQ(plan.loss(m).count, flat.runner->loss().count);
  }
}

struct Kind {
  std::string name;
  std::function<Model()> make;
  int64_t classes;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class PlanRunnerKinds : public testing::TestWithParam<Kind> {
 protected:
  void start(PlanCaseOptions options) {
    flat = std::make_unique<FlatModel>(GetParam().make(), 3);
    stir(*flat);
    plan = std::make_unique<PlanCase>(GetParam().make(), flat->unit_pointers, options);
    for (int m = 0; m < options.micro_batches; ++m)
      data.push_back(data_of(flat->model, m, GetParam().classes));
  }

  std::unique_ptr<FlatModel> flat;
  std::unique_ptr<PlanCase> plan;
  std::vector<List> data;
};

class PlanRunnerParts : public PlanRunnerKinds {};

TEST_P(PlanRunnerKinds, TwoMicroBatchesInFlightHaveTheGradientsOfModelRunner) {
  start({.micro_batches = 2});
  for (int step = 0; step < 2; ++step) {  // the second finds what the first left behind
    for (int m = 0; m < 2; ++m) plan->forward_all(m, data[m]);
    for (int m = 0; m < 2; ++m) plan->backward_all(m, data[m]);
    expect_like_model_runner(*flat, *plan, data);
    plan->poison(BufferKind::kGradient);
  }
}

TEST_P(PlanRunnerKinds, ParametersMayLieElsewhereInBackward) {
  start({.micro_batches = 2, .moving = true});
  for (int step = 0; step < 2; ++step) {
    for (size_t b = 0; b < plan->values.size(); ++b)
      std::copy_n(flat->unit_pointers[b], flat->shape.blocks[b].unit_size,
                  plan->floats(plan->values[b]));
    for (int m = 0; m < 2; ++m) plan->forward_all(m, data[m]);
    for (size_t b = 0; b < plan->values.size(); ++b) {
      std::swap_ranges(plan->floats(plan->values[b]),
                       plan->floats(plan->values[b]) + flat->shape.blocks[b].unit_size,
                       plan->floats(plan->moved[b]));
      plan->poison(plan->values[b]);
    }
    for (int m = 0; m < 2; ++m) plan->backward_all(m, data[m]);
    expect_like_model_runner(*flat, *plan, data);
    plan->poison(BufferKind::kGradient);
    plan->poison(BufferKind::kParameter);
  }
}

TEST_P(PlanRunnerKinds, SharedParametersMayBeCopiesWithGradientsOfTheirOwn) {
  start({.micro_batches = 1, .apart = true});
  plan->forward_all(0, data[0]);
  plan->backward_all(0, data[0]);
  expect_like_model_runner(*flat, *plan, data);
}

TEST_P(PlanRunnerKinds, AForwardThatComesAgainLeavesOnlyItsOutputs) {
  install_accounting_allocator();
  start({.micro_batches = 1, .recompute = true});
  plan->forward_all(0, data[0]);
  EXPECT_EQ(plan->accounts.current(BufferKind::kSaved), 0);
  plan->poison(BufferKind::kSaved);
  for (size_t w = plan->places.size(); w-- > 0;) {
    plan->forward(w, 0, data[0], true);
    plan->backward(w, 0, data[0]);
  }
  EXPECT_EQ(plan->accounts.current(BufferKind::kSaved), 0);
  expect_like_model_runner(*flat, *plan, data);
}

TEST_P(PlanRunnerParts, InputAndWeightPartsAreTheWhole) {
  start({.micro_batches = 2});
  for (const BlockShape& block : plan->shape.blocks)
    for (const SegmentShape& s : block.segments)
      ASSERT_TRUE(s.splits) << block.name << " " << s.name;
  for (int m = 0; m < 2; ++m) plan->forward_all(m, data[m]);
  for (int m = 0; m < 2; ++m) plan->backward_all(m, data[m], Part::kInput);
  for (int m = 0; m < 2; ++m)  // the gradients of borders are gone
    for (const auto& buffers : plan->flows[m])
      for (const auto& list : {buffers.flow.grad_in, buffers.flow.grad_out})
        for (int buffer : list)
          if (buffer >= 0) plan->poison(buffer);
  plan->poison(plan->work);
  for (int m = 0; m < 2; ++m) plan->backward_all(m, data[m], Part::kWeight);
  expect_like_model_runner(*flat, *plan, data);
}

const Kind kGpt{"gpt", [] { return make_model(gpt_job(false)); }, 29},
    kMlp{"mlp", [] { return make_model(mlp_job()); }, 4};
std::string name_of(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, PlanRunnerKinds,
                         testing::Values(kGpt, kMlp, Kind{"modules", module_model, 4},
                                         Kind{"gpt_under_autograd",
                                              [] { return make_model(gpt_job(true)); }, 29}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, PlanRunnerParts, testing::Values(kGpt, kMlp), name_of);

// Compares its weight with the copy that matmuls would read.
class ReadsLow final : public Segment {
 public:
  std::string name() const override { return "low"; }
  std::vector<Border> inputs() const override { return {{"x", {6, 3}}}; }
  std::vector<Border> outputs() const override { return {{"logits", {6, 3}}}; }
  void forward(Context& context, Tensors in, Tensors out) const override {
    EXPECT_TRUE(at::equal(context.weight(1), context.parameters[1].to(at::kBFloat16)));
    EXPECT_FALSE(at::equal(context.weight(1), context.weight(0)));
    out[0].copy_(in[0]);
  }
  void backward(Context&, Tensors, Tensors, Tensors, Tensors) const override {}
};

Model low_model() {
  const Border logits{"logits", {6, 3}}, targets{"targets", {6}, at::kLong};
  Model model;
  model.data = {{"x", {6, 3}}, targets};
  Block block;
  block.name = "low";
  block.parameters = {{"bias", {5}, {Init::Kind::kNormal, 1}, {}},
                      {"weight", {5}, {Init::Kind::kNormal, 1}, {}}};
  block.segments.push_back(std::make_unique<ReadsLow>());
  model.blocks.push_back(std::move(block));
  model.blocks.push_back(cross_entropy_block("loss", logits, targets));
  return model;
}

}  // namespace

TEST(PlanRunner, CopiesOfParametersLieAsTheParametersDo) {
  FlatModel flat(low_model(), 3);
  const at::Tensor copy =
      at::from_blob(flat.unit_pointers[0], {flat.shape.blocks[0].unit_size}).to(at::kBFloat16);
  PlanCaseOptions options;
  options.runner.precision = at::kBFloat16;
  options.runner.low_memory = [&](int) { return copy.data_ptr(); };
  PlanCase plan(low_model(), flat.unit_pointers, options);
  plan.forward_all(0, data_of(flat.model, 0, 3));
}

TEST(PlanRunner, RefusesABufferThatIsTooSmall) {
  FlatModel flat(make_model(mlp_job()), 3);
  PlanCase plan(make_model(mlp_job()), flat.unit_pointers, {});
  plan.program.buffers[plan.flows[0][0].flow.out[0]].bytes -= 4;
  EXPECT_DEATH(plan.forward_all(0, data_of(flat.model, 0, 4)), "are not in buffer");
}

}  // namespace tutti
