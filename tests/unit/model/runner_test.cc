#include "model/core/runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "model/adapt/adaptor.h"
#include "model/loss/loss.h"
#include "support/flat_model.h"
#include "support/logit_gradient.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

using List = std::vector<at::Tensor>;

// Tied embeddings, a block of two segments, a skip that travels through a border, and a loss block
// without parameters.
Model tied_model() {
  const Border tokens{"tokens", {8}, at::kLong}, targets{"targets", {8}, at::kLong}, x{"x", {8, 5}},
      skip{"skip", {8, 5}}, logits{"logits", {8, 11}};
  const Init normal{Init::Kind::kNormal, 0.5};
  Model model;
  model.data = {tokens, targets};
  model.blocks.push_back(adapt("embed", {{"table", {11, 5}, normal, {}}},
                               [](Tensors p, Tensors in) {
                                 const at::Tensor y = at::embedding(p[0], in[0]);
                                 return List{y, y * 2};
                               },
                               {tokens}, {x, skip}));
  model.blocks.push_back(adapt("middle",
                               {{"weight", {5, 5}, normal, {}}, {"bias", {5}, normal, {}}},
                               [](Tensors p, Tensors in) {
                                 return List{in[0], at::gelu(at::linear(in[1], p[0], p[1]))};
                               },
                               {skip, x}, {skip, x}));
  model.blocks.push_back(
      adapt("head", {{"table", {11, 5}, {}, "embed/table"}},
            [](Tensors p, Tensors in) { return List{at::linear(in[0] + in[1], p[0])}; }, {x, skip},
            {logits}));
  model.blocks.push_back(cross_entropy_block("loss", logits, targets));
  return model;
}

List tied_data() {
  return {at::arange(8, at::kLong).mul(3).remainder(11),
          at::arange(8, at::kLong).mul(5).remainder(11)};
}

}  // namespace

TEST(ModelRunner, EqualsOneGraphOverTheWholeModelBitForBitWithSharedParameters) {
  FlatModel flat(tied_model(), 3);
  const List data = tied_data();
  for (int round = 0; round < 2; ++round) {  // the second finds what the first left behind
    flat.runner->forward_all({}, data);
    flat.runner->backward_all({}, data, flat.gradient_pointers);
  }

  const at::Tensor table = flat.value(0, 0).clone().requires_grad_(),
                   again = flat.value(0, 0).clone().requires_grad_();
  const at::Tensor w = flat.value(1, 0).clone().requires_grad_(),
                   b = flat.value(1, 1).clone().requires_grad_();
  const at::Tensor y = at::embedding(table, data[0]);
  const at::Tensor logits = at::linear(at::gelu(at::linear(y, w, b)) + y * 2, again);
  const auto grads =
      torch::autograd::grad({logits}, {table, w, b, again}, {logit_gradient(logits, data[1])});
  EXPECT_TRUE(at::equal(flat.runner->border("logits"), logits));
  EXPECT_TRUE(at::equal(flat.gradient(0, 0), grads[0])) << "the owner's own part";
  EXPECT_TRUE(at::equal(flat.gradient(1, 0), grads[1]));
  EXPECT_TRUE(at::equal(flat.gradient(1, 1), grads[2]));
  EXPECT_TRUE(at::equal(flat.gradient(0, 0, 0), grads[3]))
      << "the user's part, after the owner's unit";
  EXPECT_EQ(flat.runner->loss().count, 8);
}

TEST(ModelRunner, EachBackwardWritesWhereItIsTold) {
  FlatModel flat(tied_model(), 3);
  const List data = tied_data();
  flat.runner->forward_all({}, data);
  flat.runner->backward_all({}, data, flat.gradient_pointers);
  const at::Tensor first = flat.gradient(1, 0).clone();

  auto elsewhere = FlatModel::aligned(flat.shape.blocks[1].gradient_size, NAN);
  auto pointers = flat.gradient_pointers;
  pointers[1] = elsewhere.get();
  pointers[2] = pointers[3] = nullptr;  // own nothing: never touched
  std::fill_n(flat.gradient_pointers[1], flat.shape.blocks[1].gradient_size, 7.0f);
  flat.runner->forward_all({}, data);
  flat.runner->backward_all({}, data, pointers);
  EXPECT_TRUE(at::equal(at::from_blob(elsewhere.get(), {5, 5}), first));
  EXPECT_EQ(flat.gradient_pointers[1][0], 7.0f);
}

TEST(ModelRunner, EvaluationLeavesNothingBehindAndChangesNothing) {
  install_accounting_allocator();
  FlatModel flat(tied_model(), 3);
  const List data = tied_data();
  const int64_t arena = flat.accounts.current(BufferKind::kSaved);
  flat.runner->forward_all({}, data);
  EXPECT_GT(flat.accounts.current(BufferKind::kSaved), arena) << "graphs";
  const double loss = flat.runner->loss().sum;
  Pass pass;
  pass.training = false;
  flat.runner->forward_all(pass, data);
  EXPECT_EQ(flat.runner->loss().sum, loss);
  EXPECT_EQ(flat.accounts.current(BufferKind::kSaved), arena);
}

TEST(ModelRunner, BordersAreAccounted) {
  FlatModel flat(tied_model(), 3);
  // x and skip twice and logits, each on 256-byte borders, and the loss; then gradients of two
  // inputs, which take turns: (x or logits, x) and (skip, skip).
  EXPECT_EQ(flat.accounts.current(BufferKind::kBorder),
            (4 * 256 + 512 + 256) + (512 + 256 + 2 * 256));
  EXPECT_THROW(flat.runner->border("hidden"), Error);
}

}  // namespace tutti
