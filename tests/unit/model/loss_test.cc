#include "model/loss/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "base/error.h"
#include "model/core/data_borders.h"

namespace tutti {

namespace {

constexpr int64_t kRows = 6, kClasses = 5;
const at::Tensor kNone;

at::Tensor numbers(const std::vector<int64_t>& dims, double phase) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return at::arange(count, at::kFloat).mul(1.37).add(phase).sin().mul(2).reshape(dims);
}

at::Tensor ids(const std::vector<int64_t>& values) { return at::tensor(values); }

Job job_of(const std::string& loss) {
  Job job;
  job.model.kind = "mlp";
  job.model.inputs = kClasses;
  job.model.classes = job.model.outputs = kClasses;
  job.loss.kind = loss;
  job.loss.delta = 0.7;
  job.loss.temperature = 3;
  job.loss.mix = 0.4;
  job.train.micro_batch_size = kRows;
  return job;
}

struct Result {
  double sum = 0, count = 0;
  at::Tensor gradient;
};

// Forward and backward of a loss over memory full of rubbish; only the output's gradient is wanted.
Result run(const Segment& segment, const std::vector<at::Tensor>& in) {
  std::vector<std::byte> saved(segment.saved_bytes(), std::byte{0x7f}),
      work(segment.work_bytes(), std::byte{0x7f});
  std::vector<at::Tensor> out{at::zeros({2}, at::kDouble)}, grad_out(1), grad_in(in.size());
  grad_in[0] = at::full_like(in[0], 99);
  std::shared_ptr<void> kept;
  Context context{{}, {}, {}, saved, work, kept};
  segment.forward(context, in, out);
  segment.backward(context, in, out, grad_out, grad_in);
  return {out[0][0].item<double>(), out[0][1].item<double>(), grad_in[0]};
}

Result run(const Job& job, const std::vector<at::Tensor>& in) {
  const auto data = data_borders(job);
  return run(*loss_segment(job, {"logits", {kRows, kClasses}}, data), in);
}

Result reconstruct(const std::string& kind, const std::vector<at::Tensor>& in) {
  AutogradSegment::Spec spec;
  spec.inputs = {{"output", {kRows, kClasses}},
                 {"features", {kRows, kClasses}},
                 {"targets", {kRows}, at::kLong}};
  spec.outputs = {{"loss", {2}, at::kDouble}};
  spec.function = reconstruction_loss(job_of(kind).loss);
  return run(AutogradSegment(std::move(spec)), in);
}

// The same from torch's own loss, a function of the output.
template <typename F>
Result torchs(const at::Tensor& output, F&& loss) {
  const at::Tensor x = output.clone().requires_grad_();
  const at::Tensor sum = loss(x);
  return {sum.item<double>(), 0, torch::autograd::grad({sum}, {x})[0]};
}

// Torch sums in float32, these in float64; gradients are of size 1, from exp and log of float32.
void expect_equal(const Result& mine, const Result& other, double count) {
  EXPECT_NEAR(mine.sum, other.sum, 2e-6 * std::abs(other.sum) + 1e-6);
  EXPECT_NEAR(mine.count, count, 1e-6);  // mix is a float
  EXPECT_TRUE(at::allclose(mine.gradient, other.gradient, 1e-5, 1e-6))
      << mine.gradient << other.gradient;
}

std::optional<at::Tensor> weights_of(const Job& job) {
  if (job.loss.class_weights.empty()) return {};
  return at::tensor(job.loss.class_weights).to(at::kFloat);
}

}  // namespace

TEST(Loss, CrossEntropyEqualsTorchsWithSmoothingAndWeights) {
  const at::Tensor x = numbers({kRows, kClasses}, 1), targets = ids({0, 4, -1, 2, 2, 1});
  for (double smoothing : {0.0, 0.1})
    for (bool weighted : {false, true}) {
      Job job = job_of("cross-entropy");
      job.loss.label_smoothing = smoothing;
      if (weighted) job.loss.class_weights = {1, 2, 0.5, 3, 0.25};
      const Result other = torchs(x, [&](const at::Tensor& logits) {
        return at::cross_entropy_loss(logits, targets, weights_of(job), at::Reduction::Sum, -1,
                                      smoothing);
      });
      expect_equal(run(job, {x, targets}), other, weighted ? 1 + 0.25 + 0.5 + 0.5 + 2 : 5);
    }
}

TEST(Loss, MixupMixesTheLossesOfTwoTargetsSampleBySample) {
  Job job = job_of("cross-entropy");
  job.augment.mixup = 1;
  job.loss.label_smoothing = 0.2;
  job.loss.class_weights = {1, 2, 0.5, 3, 0.25};
  const at::Tensor x = numbers({kRows, kClasses}, 2), targets = ids({0, 4, -1, 2, 2, 1}),
                   other = ids({3, 4, -1, 1, 0, 0});
  const at::Tensor mix = at::tensor(std::vector<float>{0, 0.3, 0.5, 0.25, 1, 0.5});
  const Result expected = torchs(x, [&](const at::Tensor& logits) {
    const auto one = [&](const at::Tensor& t) {
      return at::cross_entropy_loss(logits, t, weights_of(job), at::Reduction::None, -1, 0.2);
    };
    return ((1 - mix) * one(targets) + mix * one(other)).sum();
  });
  const double count = 1 + 0.25 + (0.75 * 0.5 + 0.25 * 2) + 1 + (0.5 * 2 + 0.5 * 1);
  expect_equal(run(job, {x, targets, other, mix}), expected, count);
}

TEST(Loss, ValuesEqualTorchsAndLeaveOutNanTargets) {
  const at::Tensor x = numbers({kRows, kClasses}, 3);
  at::Tensor targets = numbers({kRows, kClasses}, 7).sigmoid();
  at::Tensor valid = at::full_like(targets, 1);
  for (int i : {0, 7, 8, 29}) targets.view({-1})[i] = NAN, valid.view({-1})[i] = 0;
  const at::Tensor safe = targets.nan_to_num(0);
  const auto each = at::Reduction::None;
  const std::map<std::string, std::function<at::Tensor(const at::Tensor&)>> losses = {
      {"mse", [&](const at::Tensor& y) { return at::mse_loss(y, safe, each); }},
      {"mae", [&](const at::Tensor& y) { return at::l1_loss(y, safe, each); }},
      {"huber", [&](const at::Tensor& y) { return at::huber_loss(y, safe, each, 0.7); }},
      {"bce", [&](const at::Tensor& y) {
         return at::binary_cross_entropy_with_logits(y, safe, {}, {}, each);
       }}};
  for (const auto& [kind, loss] : losses) {
    const Result other = torchs(x, [&](const at::Tensor& y) { return (loss(y) * valid).sum(); });
    SCOPED_TRACE(kind);
    expect_equal(run(job_of(kind), {x, targets}), other, kRows * kClasses - 4);
  }
}

TEST(Loss, AnAutoencoderIsComparedWithItsInputRowsOfPaddingLeftOut) {
  const at::Tensor x = numbers({kRows, kClasses}, 4),
                   features = numbers({kRows, kClasses}, 5).sigmoid(),
                   labels = ids({0, 7, -1, 2, -1, 1});
  const at::Tensor rows = labels.ne(-1).to(at::kFloat).reshape({kRows, 1});
  const Result mse = torchs(x, [&](const at::Tensor& y) {
    return (at::mse_loss(y, features, at::Reduction::None) * rows).sum();
  });
  expect_equal(reconstruct("mse", {x, features, labels}), mse, 4 * kClasses);
  const Result bce = torchs(x, [&](const at::Tensor& y) {
    return (at::binary_cross_entropy_with_logits(y, features, {}, {}, at::Reduction::None) * rows)
        .sum();
  });
  expect_equal(reconstruct("bce", {x, features, labels}), bce, 4 * kClasses);
}

TEST(Loss, AMicroBatchWithoutTargetsCountsNothingAndHasNoGradient) {
  const at::Tensor x = numbers({kRows, kClasses}, 1), none = at::full_like(x, NAN),
                   no_class = ids(std::vector<int64_t>(kRows, -1));
  const auto expect_nothing = [](const Result& result) {
    EXPECT_EQ(result.sum, 0);
    EXPECT_EQ(result.count, 0);
    EXPECT_TRUE(at::equal(result.gradient, at::zeros_like(result.gradient))) << result.gradient;
  };
  for (const char* kind : {"mse", "mae", "huber", "bce"})
    expect_nothing(run(job_of(kind), {x, none}));
  expect_nothing(reconstruct("mse", {x, numbers({kRows, kClasses}, 5), no_class}));
  Job job = job_of("cross-entropy");
  job.loss.label_smoothing = 0.1;
  expect_nothing(run(job, {x, no_class}));
  const auto teacher = [](Tensors) { return numbers({kRows, kClasses}, 8); };
  job = job_of("distill");
  const auto data = data_borders(job);
  expect_nothing(run(*distill_segment(job, {"logits", {kRows, kClasses}}, data, teacher),
                     {x, numbers({kRows, kClasses}, 5), no_class}));
}

TEST(Loss, DistillationEqualsTheRecipeOfKlAndCrossEntropy) {
  Job job = job_of("distill");
  job.loss.label_smoothing = 0.1;
  const auto data = data_borders(job);
  const at::Tensor x = numbers({kRows, kClasses}, 1), features = numbers({kRows, kClasses}, 6),
                   targets = ids({0, 4, -1, 2, 2, 1}), taught = numbers({kRows, kClasses}, 8);
  std::vector<at::Tensor> asked;
  const auto segment =
      distill_segment(job, {"logits", {kRows, kClasses}}, data, [&](Tensors tensors) {
        asked.assign(tensors.begin(), tensors.end());
        return taught;
      });
  ASSERT_EQ(segment->inputs().size(), 3u) << "the output and all of the data";
  const Result expected = torchs(x, [&](const at::Tensor& y) {
    const at::Tensor valid = targets.ne(-1).to(at::kFloat);
    const at::Tensor soft =
        at::kl_div(at::log_softmax(y / 3, 1), at::softmax(taught / 3, 1), at::Reduction::None);
    const at::Tensor hard = at::cross_entropy_loss(y, targets, {}, at::Reduction::Sum, -1, 0.1);
    return 0.4 * 9 * (soft.sum(1) * valid).sum() + 0.6 * hard;
  });
  expect_equal(run(*segment, {x, features, targets}), expected, 5);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_TRUE(asked[0].is_same(features));
  EXPECT_TRUE(asked[1].is_same(targets));
  EXPECT_EQ(loss_segment(job, {"logits", {kRows, kClasses}}, data)->name(), "cross_entropy")
      << "until it has a teacher";
}

TEST(Loss, TheTeachersTermCountsByTheWeightOfTheTarget) {
  Job job = job_of("distill");
  job.loss.mix = 1;
  job.loss.class_weights = {0, 2, 0, 0, 0};
  const at::Tensor x = numbers({kRows, kClasses}, 1), taught = numbers({kRows, kClasses}, 8);
  const auto segment = distill_segment(job, {"logits", {kRows, kClasses}}, data_borders(job),
                                       [&](Tensors) { return taught; });
  const Result expected = torchs(x, [&](const at::Tensor& y) {
    const at::Tensor soft =
        at::kl_div(at::log_softmax(y / 3, 1), at::softmax(taught / 3, 1), at::Reduction::None);
    return 9 * 2 * soft.sum(1)[3];
  });
  expect_equal(run(*segment, {x, x, ids({0, 4, -1, 1, 2, 3})}), expected, 2);
}

TEST(Loss, RefusesWhatDoesNotFit) {
  const auto refused = [](const Job& job, const Border& output) {
    EXPECT_THROW(loss_segment(job, output, data_borders(job)), Error) << job.loss.kind;
  };
  refused(job_of("cross-entropy"), {"logits", {kRows + 1, kClasses}});
  refused(job_of("mse"), {"logits", {kRows, kClasses + 1}});
  refused(job_of("nothing"), {"logits", {kRows, kClasses}});
  Job job = job_of("cross-entropy");
  job.loss.class_weights = {1, 2};
  refused(job, {"logits", {kRows, kClasses}});
  EXPECT_THROW(
      run(job_of("cross-entropy"), {numbers({kRows, kClasses}, 1), ids({0, 1, 2, 3, 4, 5})}), Error)
      << "a target past the classes";
}

}  // namespace tutti
