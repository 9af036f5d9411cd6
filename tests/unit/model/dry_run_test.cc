#include "model/core/dry_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "model/adapt/adaptor.h"
#include "model/loss/loss.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

using List = std::vector<at::Tensor>;
constexpr int64_t kRows = 64, kColumns = 16, kBytes = kRows * kColumns * 4;

// Counts its calls and declares memory of its own.
class Counted final : public Segment {
 public:
  explicit Counted(int* calls) : calls_(calls) {}
  std::string name() const override { return "counted"; }
  std::vector<Border> inputs() const override { return {{"x", {kRows, kColumns}}}; }
  std::vector<Border> outputs() const override { return {{"x", {kRows, kColumns}}}; }
  int64_t saved_bytes() const override { return 1000; }
  int64_t work_bytes() const override { return 500; }
  void forward(Context& context, Tensors in, Tensors out) const override {
    ++*calls_;
    EXPECT_EQ(context.saved.size(), 1000u);
    EXPECT_EQ(context.work.size(), 500u);
    const at::Tensor temporary = at::empty({kRows, kColumns});
    out[0].copy_(in[0]);
  }
  void backward(Context&, Tensors, Tensors, Tensors grad_out, Tensors grad_in) const override {
    if (grad_in[0].defined()) grad_in[0].copy_(grad_out[0]);
  }

 private:
  int* calls_;
};

Model model_of(std::vector<Block> blocks) {
  Model model;
  model.data = {{"x", {kRows, kColumns}}, {"targets", {kRows}, at::kLong}};
  model.blocks = std::move(blocks);
  model.blocks.push_back(
      cross_entropy_block("loss", {"x", {kRows, kColumns}}, {"targets", {kRows}, at::kLong}));
  return model;
}

Block function_block(const std::string& name, std::function<List(Tensors, Tensors)> f) {
  return adapt(name, {}, std::move(f), {{"x", {kRows, kColumns}}}, {{"x", {kRows, kColumns}}});
}

}  // namespace

TEST(AccountingAllocator, CountsWhatAThreadAllocatesInItsScopeUntilItIsFreed) {
  install_accounting_allocator();
  install_accounting_allocator();
  Accounts outer, inner;
  Ledger outer_ledger(outer), inner_ledger(inner);
  {
    at::Tensor uncounted = at::empty({100});
    AllocationScope scope(outer_ledger, BufferKind::kWork);
    at::Tensor a = at::empty({100});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data_ptr()) % 64, 0u);
    {
      AllocationScope nested(inner_ledger, BufferKind::kSaved);
      at::Tensor b = at::empty({50});
      EXPECT_EQ(inner.current(BufferKind::kSaved), 200);
      std::thread([&] { b.reset(); }).join();  // freed elsewhere
      EXPECT_EQ(inner.current(BufferKind::kSaved), 0);
    }
    {
      AllocationScope nothing;
      EXPECT_EQ(at::empty({30}).numel(), 30);
    }
    std::thread([&] { at::Tensor other_thread = at::empty({1000}); }).join();
    at::Tensor c = at::empty({10});
    EXPECT_EQ(outer.current(BufferKind::kWork), 440);
  }
  EXPECT_EQ(outer.current(BufferKind::kWork), 0);
  EXPECT_EQ(outer.peak(BufferKind::kWork), 440);
  EXPECT_EQ(inner.peak(BufferKind::kSaved), 200);
}

TEST(AccountingAllocator, ATensorMayOutliveTheLedgerAndTheAccounts) {
  install_accounting_allocator();
  at::Tensor kept;
  {
    Accounts accounts;
    {
      Ledger ledger(accounts);
      AllocationScope scope(ledger, BufferKind::kSaved);
      kept = at::empty({100});
      EXPECT_EQ(accounts.current(BufferKind::kSaved), 400);
    }
    EXPECT_EQ(accounts.current(BufferKind::kSaved), 0);
  }
  kept.fill_(1);
  kept.reset();
}

TEST(DryRun, AddsWhatAtenHeldToWhatASegmentDeclares) {
  int calls = 0;
  Block block;
  block.name = "counted";
  block.segments.push_back(std::make_unique<Counted>(&calls));
  std::vector<Block> blocks;
  blocks.push_back(std::move(block));
  const Model model = model_of(std::move(blocks));
  ModelShape shape = describe(model);
  dry_run(model, shape);
  EXPECT_EQ(shape.blocks[0].segments[0].saved_bytes, 1000);
  EXPECT_EQ(shape.blocks[0].segments[0].work_bytes, 500 + kBytes);
}

TEST(DryRun, AnAutogradSegmentsSavedTensorsAreMeasured) {
  std::vector<Block> blocks;
  blocks.push_back(function_block("first", [](Tensors, Tensors in) { return List{in[0] * 2}; }));
  blocks.push_back(function_block("exp", [](Tensors, Tensors in) { return List{in[0].exp()}; }));
  blocks.push_back(
      function_block("exp exp", [](Tensors, Tensors in) { return List{in[0].exp().exp()}; }));
  const Model model = model_of(std::move(blocks));
  ModelShape shape = describe(model);
  dry_run(model, shape);
  EXPECT_EQ(shape.blocks[1].segments[0].saved_bytes, kBytes);
  EXPECT_EQ(shape.blocks[2].segments[0].saved_bytes, 2 * kBytes);
  EXPECT_EQ(shape.blocks[1].segments[0].work_bytes, kBytes)
      << "the gradient before it is copied to the border";
  EXPECT_EQ(shape.blocks[2].segments[0].work_bytes, 2 * kBytes) << "and the one between the two";
}

TEST(DryRun, EqualSegmentsRunOnce) {
  int calls = 0;
  std::vector<Block> blocks;
  blocks.push_back(function_block("first", [](Tensors, Tensors in) { return List{in[0] * 2}; }));
  for (int i = 0; i < 5; ++i) {
    Block block;
    block.name = "counted " + std::to_string(i);
    block.segments.push_back(std::make_unique<Counted>(&calls));
    blocks.push_back(std::move(block));
  }
  const Model model = model_of(std::move(blocks));
  ModelShape shape = describe(model);
  dry_run(model, shape);
  EXPECT_EQ(calls, 1);
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(shape.blocks[i].segments[0].work_bytes, 500 + kBytes);
}

TEST(DryRun, FindsUndeclaredDraws) {
  std::vector<Block> blocks;
  blocks.push_back(function_block(
      "noisy", [](Tensors, Tensors in) { return List{at::dropout(in[0], 0.5, true)}; }));
  const Model model = model_of(std::move(blocks));
  ModelShape shape = describe(model);
  EXPECT_THROW(dry_run(model, shape), Error);
}

}  // namespace tutti
