// Columns of tensor-sliced models through PlanRunner, with exchanges between them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/adapt/adaptor.h"
#include "model/core/dry_run.h"
#include "model/make_model.h"
#include "unit/model/support/plan_case.h"

namespace tutti {

namespace {

using named_case::resolved, named_case::wave;
using List = std::vector<at::Tensor>;

Model sliced_gpt() {
  Job job = resolved(R"(
[model]
kind = "gpt"
layers = 2
width = 32
heads = 2
context = 24
vocab = 30
dropout = 0.1
[data]
kind = "walk"
[train]
micro_batch_size = 2
)");
  job.train.tensor_slices = 2;
  return make_model(job);
}

// Units by block, all of numbers that look like nothing in particular.
struct Units {
  explicit Units(const ModelShape& shape) {
    for (const BlockShape& block : shape.blocks) {
      memory.push_back(FlatModel::aligned(block.unit_size, 0));
      values.push_back(memory.back().get());
      for (const ParameterShape& p : block.parameters)
        at::from_blob(values.back() + p.offset, p.dims)
            .copy_(wave(p.dims, static_cast<double>(p.offset), 0.2));
    }
  }
  std::vector<FlatModel::Floats> memory;
  std::vector<float*> values;
};

// Two columns of a layer with its input gathered and its output scattered, a residual that is
// passed on, and a scale that the columns share; every column computes its rows of the loss.
constexpr int64_t kRows = 8, kWidth = 6, kHalf = kRows / 2;

Block column_block(int c) {
  const std::string slice = ".slice" + std::to_string(c);
  const Border tokens{"tokens", {kRows, kWidth}}, x{"x", {kHalf, kWidth}},
      whole{"normal", {kRows, kWidth}}, sum{"sum", {kRows, kWidth}};
  Border gathered{"normal", {kHalf, kWidth}}, passed = x, scattered = sum;
  gathered.exchange = Exchange::kGather;
  passed.same_as = "x";
  scattered.exchange = Exchange::kScatter;
  const Init normal{Init::Kind::kNormal, 0.5};
  Block block;
  block.name = "layer" + slice;
  block.parameters = {{"scale", {kWidth}, normal, c == 0 ? "" : "layer.slice0/scale"},
                      {"up", {kWidth, kWidth}, normal, {}}};
  const auto part = [&](std::string name, std::vector<Border> in, std::vector<Border> out,
                        int first, int count, std::function<List(Tensors, Tensors)> f) {
    AutogradSegment::Spec spec;
    spec.name = std::move(name);
    spec.inputs = std::move(in);
    spec.outputs = std::move(out);
    spec.first_parameter = first;
    spec.parameters = count;
    spec.function = [f = std::move(f)](const Pass&, Tensors p, Tensors in) { return f(p, in); };
    block.segments.push_back(std::make_unique<AutogradSegment>(std::move(spec)));
  };
  part("cut", {tokens}, {x}, 0, 0,
       [c](Tensors, Tensors in) { return List{in[0].narrow(0, c * kHalf, kHalf) * 1.5}; });
  part("norm", {x}, {gathered, passed}, 0, 1, [](Tensors p, Tensors in) {
    return List{in[0] * p[0], in[0]};
  });
  part("up", {x, whole}, {passed, scattered}, 1, 1, [](Tensors p, Tensors in) {
    return List{in[0], at::gelu(at::linear(in[1], p[0]))};
  });
  return block;
}

Block column_loss(int c) {
  const Border x{"x", {kHalf, kWidth}}, sum{"sum", {kHalf, kWidth}},
      targets{"targets", {kRows}, at::kLong}, loss{"loss", {2}, at::kDouble};
  return adapt(
      "loss.slice" + std::to_string(c),
      {{"head", {kWidth, kWidth}, {Init::Kind::kNormal, 0.5}, c == 0 ? "" : "loss.slice0/head"}},
      [c](Tensors p, Tensors in) {
        const at::Tensor mine = in[2].narrow(0, c * kHalf, kHalf);
        const at::Tensor sum =
            at::cross_entropy_loss(at::linear(in[0] + in[1], p[0]), mine, {}, at::Reduction::Sum);
        return List{at::cat({sum.reshape({1}), at::ones({1})}).to(at::kDouble)};
      },
      {x, sum, targets}, {loss});
}

Model column_model() {
  Model model;
  model.columns = 2;
  model.data = {{"tokens", {kRows, kWidth}}, {"targets", {kRows}, at::kLong}};
  for (int c = 0; c < 2; ++c) model.blocks.push_back(column_block(c));
  for (int c = 0; c < 2; ++c) model.blocks.push_back(column_loss(c));
  return model;
}

}  // namespace

TEST(PlanColumns, ColumnsThatExchangeAreOneGraph) {
  const Model like = column_model();
  const ModelShape shape = describe(like);
  std::vector<FlatModel::Floats> memory;
  std::vector<float*> values;
  for (const BlockShape& block : shape.blocks) {
    memory.push_back(FlatModel::aligned(block.unit_size, 0));
    values.push_back(memory.back().get());
  }
  const auto fill = [&](int unit, int parameter, double phase) {
    const ParameterShape& p = shape.blocks[unit].parameters[parameter];
    at::from_blob(values[unit] + p.offset, p.dims).copy_(wave(p.dims, phase));
    return wave(p.dims, phase).requires_grad_();
  };
  const at::Tensor scale = fill(0, 0, 0.3), up0 = fill(0, 1, 0.6), up1 = fill(1, 0, 0.9),
                   head = fill(2, 0, 1.2);
  const at::Tensor scale1 = scale.detach().clone().requires_grad_(),
                   head1 = head.detach().clone().requires_grad_();

  PlanCase plan(column_model(), values, {.micro_batches = 2});
  for (int m = 0; m < 2; ++m) plan.forward_all(m, data_of(like, m, kWidth));
  for (int m = 0; m < 2; ++m) {
    const List data = data_of(like, m, kWidth);
    plan.backward_all(m, data);
    const at::Tensor x0 = data[0].narrow(0, 0, kHalf) * 1.5,
                     x1 = data[0].narrow(0, kHalf, kHalf) * 1.5;
    const at::Tensor whole = at::cat({x0 * scale, x1 * scale1});
    const at::Tensor sum = at::gelu(at::linear(whole, up0)) + at::gelu(at::linear(whole, up1));
    const auto end = [&](const at::Tensor& x, int64_t row, const at::Tensor& w) {
      return at::cross_entropy_loss(at::linear(x + sum.narrow(0, row, kHalf), w),
                                    data[1].narrow(0, row, kHalf), {}, at::Reduction::Sum);
    };
    const at::Tensor loss0 = end(x0, 0, head), loss1 = end(x1, kHalf, head1);
    const auto grads =
        torch::autograd::grad({loss0 + loss1}, {scale, scale1, up0, up1, head, head1});
    const auto expect = [&](int unit, int parameter, int extra, const at::Tensor& grad) {
      const ParameterShape& p = shape.blocks[unit].parameters[parameter];
      const at::Tensor got =
          at::from_blob(const_cast<float*>(plan.gradient(m, unit, p, extra)), p.dims);
      EXPECT_TRUE(at::equal(got, grad)) << p.name << " of user " << extra;
    };
    expect(0, 0, -1, grads[0]);
    expect(0, 0, 0, grads[1]);
    expect(0, 1, -1, grads[2]);
    expect(1, 0, -1, grads[3]);
    expect(2, 0, -1, grads[4]);
    expect(2, 0, 0, grads[5]);
    EXPECT_EQ(plan.loss(m, 0).sum, loss0.item<double>());
    EXPECT_EQ(plan.loss(m, 1).sum, loss1.item<double>());
  }
}

TEST(PlanColumns, ADryRunMeasuresColumns) {
  const Model model = column_model();
  ModelShape shape = describe(model);
  dry_run(model, shape);
  EXPECT_GT(shape.blocks[1].segments[2].saved_bytes, 0);
}

TEST(PlanColumns, ADryRunAddsNothingToWhatHandWrittenSlicesDeclare) {
  const Model model = sliced_gpt();
  const ModelShape declared = describe(model);
  ModelShape shape = declared;
  dry_run(model, shape);
  for (size_t b = 0; b < shape.blocks.size(); ++b)
    for (size_t s = 0; s < shape.blocks[b].segments.size(); ++s)
      EXPECT_EQ(shape.blocks[b].segments[s].saved_bytes, declared.blocks[b].segments[s].saved_bytes)
          << shape.blocks[b].name << " " << shape.blocks[b].segments[s].name;
}

TEST(PlanColumns, InputAndWeightPartsOfASlicedGptAreTheWhole) {
  const ModelShape shape = describe(sliced_gpt());
  ASSERT_EQ(shape.columns, 2);
  const Units units(shape);
  PlanCase whole(sliced_gpt(), units.values, {.micro_batches = 2}),
      parts(sliced_gpt(), units.values, {.micro_batches = 2});
  const std::vector<List> data{data_of(whole.model, 0, 30), data_of(whole.model, 1, 30)};
  for (PlanCase* plan : {&whole, &parts})
    for (int m = 0; m < 2; ++m) plan->forward_all(m, data[m]);
  for (int m = 0; m < 2; ++m) whole.backward_all(m, data[m]);
  for (int m = 0; m < 2; ++m) parts.backward_all(m, data[m], Part::kInput);
  for (int m = 0; m < 2; ++m) parts.backward_all(m, data[m], Part::kWeight);
  for (int m = 0; m < 2; ++m) {
    std::vector<float*> expected;
    for (int buffer : whole.own_gradients[m]) expected.push_back(whole.floats(buffer));
    EXPECT_TRUE(std::isfinite(whole.loss(m).sum));
    EXPECT_TRUE(std::isfinite(expected[0][0]));
    EXPECT_EQ(whole.loss(m, 0).sum, whole.loss(m, 1).sum) << "every column ends with the same loss";
    parts.expect_gradients(m, expected);
  }
}

}  // namespace tutti
