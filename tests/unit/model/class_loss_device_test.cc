// The class loss of a GPU, run on the CPU's tensors, against the class loss of the CPU.
#include "model/loss/class_loss_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

constexpr int64_t kRows = 6, kClasses = 5;

struct Case {
  const char* name;
  double smoothing;
  bool weighted, mixup, teacher;
};
const Case kCases[] = {{"smoothing", 0.1, false, false, false},
                       {"weights", 0, true, false, false},
                       {"mixup", 0, false, true, false},
                       {"all of these", 0.2, true, true, false},
                       {"a teacher", 0, false, false, true},
                       {"smoothing, weights and mixup", 0.3, true, true, false},
                       {"a teacher and weights", 0.1, true, false, true}};

at::Tensor wave(at::IntArrayRef dims, double phase) {
  return (at::arange(kRows * kClasses, at::kFloat) * 0.9 + phase).sin().reshape(dims) * 3;
}

ClassLossSpec spec_of(const Case& c) {
  ClassLossSpec spec;
  spec.logits = {"logits", {kRows, kClasses}};
  spec.targets = {"targets", {kRows}, at::kLong};
  spec.smoothing = c.smoothing;
  if (c.weighted) spec.weights = {0.5, 1, 2, 0, 1.5};
  spec.mixup = c.mixup;
  if (c.teacher) {
    spec.teacher = [](Tensors) { return wave({kRows, kClasses}, 0.5); };
    spec.temperature = 2;
    spec.mix = 0.7;
    spec.data = {spec.targets};
  }
  return spec;
}

/// A micro-batch, and memory as a segment has it.
struct Batch {
  at::Tensor logits = wave({kRows, kClasses}, 0);
  at::Tensor targets = at::tensor({0, 3, -1, 4, 2, 1}, at::kLong);
  at::Tensor others = at::tensor({0, 1, -1, -1, 4, 3}, at::kLong);
  at::Tensor mix = at::tensor({0.0, 0.25, 0.5, 0.75, 1.0, 0.4}, at::kFloat);
  at::Tensor saved = at::zeros({4096}, at::kByte), work = at::zeros({4096}, at::kByte);
  at::Tensor scale = at::tensor({8.0, 0.0}, at::kDouble);
  std::shared_ptr<void> kept;

  Context context() { return {{}, {}, {}, bytes(saved), bytes(work), kept}; }
  static std::span<std::byte> bytes(const at::Tensor& memory) {
    return {static_cast<std::byte*>(memory.data_ptr()), static_cast<size_t>(memory.numel())};
  }
};

DeviceClassLoss device_loss(ClassLossSpec spec) {
  if (spec.weights.empty()) spec.weights.assign(kClasses, 1.0);
  return {spec, kRows, kClasses};
}

ClassRows rows_of(const Case& c, const Batch& batch) {
  return c.mixup ? ClassRows{batch.logits, batch.targets, batch.others, batch.mix}
                 : ClassRows{batch.logits, batch.targets, {}, {}};
}

TEST(DeviceClassLoss, IsTheHostsWithEverythingThatSoftensIt) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const ClassLossSpec spec = spec_of(c);
    Batch host, device;
    const auto segment = class_loss(spec);
    std::vector<at::Tensor> in = {host.logits, host.targets};
    if (c.mixup) in.insert(in.end(), {host.others, host.mix});
    const std::vector<at::Tensor> out = {at::empty({2}, at::kDouble)};
    const std::vector<at::Tensor> grad = {at::empty({kRows, kClasses}, at::kFloat), {}, {}, {}};
    Context context = host.context();
    segment->forward(context, in, out);
    segment->backward(context, in, out, std::vector<at::Tensor>(1), grad);

    const DeviceClassLoss loss = device_loss(spec);
    const ClassRows rows = rows_of(c, device);
    const at::Tensor result = at::empty({2}, at::kDouble),
                     dlogits = at::empty({kRows, kClasses}, at::kFloat);
    Context there = device.context();
    loss.forward(there, rows, c.teacher ? spec.teacher({}) : at::Tensor(), result);
    loss.backward(there, rows, dlogits);
    // The device's logarithms are its own; float64 sums are in another order.
    EXPECT_NEAR(result[0].item<double>(), out[0][0].item<double>(), 1e-6);
    EXPECT_NEAR(result[1].item<double>(), out[0][1].item<double>(), 1e-12);
    // -q is rounded once more where smoothing and target meet.
    EXPECT_LE((dlogits - grad[0]).abs().max().item<double>(), 1e-6);
    EXPECT_GT(grad[0].abs().max().item<double>(), 0.1);
    // A scale, which is a power of two here, multiplies the gradient and nothing else.
    there.loss_scale = device.scale.const_data_ptr<double>();
    const at::Tensor scaled = at::empty_like(dlogits);
    loss.backward(there, rows, scaled);
    EXPECT_LE((scaled / 8 - dlogits).abs().max().item<double>(), 1e-7);
  }
}

TEST(DeviceClassLoss, ATargetThatIsNoClassMakesTheLossNan) {
  const ClassLossSpec spec = spec_of(kCases[0]);
  for (const int64_t wrong : {kClasses, int64_t{-2}}) {
    Batch batch;
    batch.targets[1] = wrong;
    const at::Tensor result = at::empty({2}, at::kDouble);
    device_loss(spec).forward(batch.context(), {batch.logits, batch.targets, {}, {}}, {}, result);
    EXPECT_TRUE(std::isnan(result[0].item<double>())) << wrong;
  }
}

TEST(DeviceClassLoss, RowsWithoutATargetMayBeInfinite) {
  const ClassLossSpec spec = spec_of(kCases[0]);
  Batch batch;
  batch.logits[2][1] = -std::numeric_limits<float>::infinity();  // row 2 has no target
  const at::Tensor result = at::empty({2}, at::kDouble);
  device_loss(spec).forward(batch.context(), {batch.logits, batch.targets, {}, {}}, {}, result);
  EXPECT_TRUE(std::isfinite(result[0].item<double>()));
  EXPECT_EQ(result[1].item<double>(), 5);
}

}  // namespace
}  // namespace tutti
