// Every built-in model that runs through autograd segments, on a GPU: repeatable to the bit,
// capturable, and close to the CPU in float32, bfloat16 and float16.
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "base/error.h"
#include "eval/metrics.h"
#include "gpu/model_case.h"
#include "model/adapt/adaptor.h"
#include "model/core/dropout.h"
#include "model/dense/keyed_normals.h"
#include "model/loss/class_loss.h"

namespace tutti {
namespace {

using namespace model_case;  // NOLINT(google-build-using-namespace)

const at::Device kGpu(at::kCUDA, 0);
const char* const kPrecisions[] = {"float32", "bfloat16", "float16"};

class GpuOperators : public GpuTest {
 protected:
  std::unique_ptr<FlatModel> on_cpu(const Job& job) {
    auto flat = std::make_unique<FlatModel>(make_model(job), 11);
    named_case::stir(*flat);
    // A running variance is positive.
    for (const BlockShape& block : flat->shape.blocks)
      for (const ParameterShape& p : block.parameters)
        if (p.name.ends_with("variance") || p.name.ends_with("running_var"))
          named_case::value(*flat, p.name).abs_();
    return flat;
  }
  std::unique_ptr<GpuModel> on_gpu(const Job& job, const std::string& precision,
                                   const FlatModel& flat, const std::vector<at::Tensor>& data) {
    return std::make_unique<GpuModel>(job, precision, flat, data, *device, stream);
  }
};

void expect_same_bits(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(std::memcmp(&a.loss, &b.loss, sizeof a.loss), 0)
      << what << ": loss " << a.loss << " and " << b.loss;
  EXPECT_EQ(a.count, b.count) << what;
  EXPECT_EQ(first_difference(a.output, b.output), -1) << what << ": the output";
  for (size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_EQ(first_difference(a.gradients[i], b.gradients[i]), -1)
        << what << ": the gradient of " << a.names[i];
}

double largest(const std::vector<float>& values) {
  double top = 0;
  for (const float value : values)
    top = std::isfinite(value) ? std::max(top, std::abs(double{value})) : INFINITY;
  return top;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
  }
  return worst;
}

/// |a - b| / |b| over all gradients, as vectors.
double gradient_distance(const Result& a, const Result& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i)
    for (size_t j = 0; j < a.gradients[i].size(); ++j) {
      const double d = double{a.gradients[i][j]} - double{b.gradients[i][j]};
      difference += d * d;
      size += double{b.gradients[i][j]} * double{b.gradients[i][j]};
    }
  return std::sqrt(difference / size);
}

TEST_F(GpuOperators, RepeatBitForBit) {
  for (const Trial& trial : trials()) {
    const auto flat = on_cpu(trial.job);
    const auto data = data_of(trial.job, flat->model);
    for (const std::string precision : kPrecisions) {
      const std::string what = trial.name + " " + precision;
      const auto model = on_gpu(trial.job, precision, *flat, data);
      const Result first = model->run();
      for (int again = 0; again < 3; ++again) expect_same_bits(model->run(), first, what);
      expect_same_bits(on_gpu(trial.job, precision, *flat, data)->run(), first,
                       what + ", in other memory");
    }
  }
}

TEST_F(GpuOperators, AgreeWithTheCpuInFloat32) {
  for (const Trial& trial : trials()) {
    SCOPED_TRACE(trial.name);
    const auto flat = on_cpu(trial.job);
    const auto data = data_of(trial.job, flat->model);
    const Result want = run_on_cpu(*flat, data),
                 got = on_gpu(trial.job, "float32", *flat, data)->run();
    // Float32 sums of up to some thousands of terms in another order, through a few layers: 2e-5 of
    // the largest. (TF32 would be off by 1e-3.)
    EXPECT_NEAR(got.loss, want.loss, 2e-5 * std::abs(want.loss));
    EXPECT_NEAR(got.count, want.count, 1e-9);
    EXPECT_LE(largest_difference(got.output, want.output),
              2e-5 * std::max(1.0, largest(want.output)));
    // Gradients carry the differences of the values they are made from. Some are zero but for
    // rounding (of a bias before a batch norm), so that the measure is the largest of all.
    double top = 0;
    for (const auto& gradient : want.gradients) top = std::max(top, largest(gradient));
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (size_t i = 0; i < want.gradients.size(); ++i)
      EXPECT_LE(largest_difference(got.gradients[i], want.gradients[i]), 1e-4 * top)
          << want.names[i];
  }
}

TEST_F(GpuOperators, AreNearTheCpuInNarrowPrecisions) {
  for (const Trial& trial : trials()) {
    const auto flat = on_cpu(trial.job);
    const auto data = data_of(trial.job, flat->model);
    const Result want = run_on_cpu(*flat, data);
    // A matmul's inputs are rounded by 2^-9 (bfloat16) or 2^-12 (float16) of themselves; a few
    // layers and the kinks of activations, pools and losses make that some percent of a gradient.
    for (const auto& [precision, loss, gradient] :
         {std::tuple{"bfloat16", 0.05, 0.25}, {"float16", 0.01, 0.08}}) {
      SCOPED_TRACE(trial.name + " " + precision);
      const Result got = on_gpu(trial.job, precision, *flat, data)->run();
      EXPECT_NEAR(got.loss, want.loss, loss * std::abs(want.loss));
      EXPECT_LE(gradient_distance(got, want), gradient);
      // It must not be float32 in disguise.
      EXPECT_GT(gradient_distance(got, want), 1e-5);
    }
  }
}

TEST_F(GpuOperators, ACapturedPassHasTheBitsOfOneThatIsNotWithOtherKeysToo) {
  const StepKeys other{7, 1000};
  for (const Trial& trial : trials()) {
    const auto flat = on_cpu(trial.job);
    const auto data = data_of(trial.job, flat->model);
    for (const std::string precision : kPrecisions) {
      const std::string what = trial.name + " " + precision;
      const auto model = on_gpu(trial.job, precision, *flat, data);
      for (const Block& block : model->model.blocks)
        for (const auto& segment : block.segments)
          EXPECT_TRUE(segment->captures()) << what << " " << segment->name();
      const Result first = model->run();
      model->set_keys(other);
      const Result second = model->run();
      device->begin_capture(stream);
      model->enqueue();
      const CapturedStep step = device->end_capture(stream);
      model->forget_gradients();
      device->launch(step, stream);
      expect_same_bits(model->result(), second, what + " captured");
      model->set_keys({kStep, kFirstSample - 8});
      model->forget_gradients();
      device->launch(step, stream);
      expect_same_bits(model->result(), first, what + " captured, earlier keys");
      wait();
      device->destroy(step);
    }
  }
}

TEST_F(GpuOperators, MasksAreTheCpus) {
  Dropout dropout{0.3, 7, 12, 5, 2, 1003, 4};
  const at::Tensor like = at::ones({6, 4, 77});
  const std::vector<float> want = floats_of(keyed_mask(dropout, like));
  EXPECT_EQ(first_difference(floats_of(keyed_mask(dropout, like.to(kGpu))), want), -1)
      << "without keys";
  const GpuArray<StepKeys> keys(*device, stream, std::vector<StepKeys>{{12, 1000}});
  dropout.keys = keys.data();
  dropout.step = 0;
  dropout.first_sample = 3;
  EXPECT_EQ(first_difference(floats_of(keyed_mask(dropout, like.to(kGpu))), want), -1)
      << "with keys";
}

TEST_F(GpuOperators, NormalsAreTheCpusButForTheLogarithmsRounding) {
  Pass pass;
  pass.seed = 9;
  pass.first_sample = 1003;
  const std::vector<float> want = floats_of(keyed_normals(pass, 40, 33, at::kCPU));
  const GpuArray<StepKeys> keys(*device, stream, std::vector<StepKeys>{{12, 1000}});
  pass.keys = keys.data();
  pass.first_sample = 3;
  EXPECT_LE(largest_difference(floats_of(keyed_normals(pass, 40, 33, kGpu)), want), 1e-6);
}

TEST_F(GpuOperators, DrawsOfTorchsGeneratorAreReseededThere) {
  AdaptOptions options;
  options.draws = true;
  const auto drop = [](Tensors, Tensors in) {
    return std::vector<at::Tensor>{at::dropout(in[0], 0.5, true)};
  };
  const Block block = adapt("drop", {}, drop, {{"x", {512}}}, {{"y", {512}}}, options);
  EXPECT_FALSE(block.segments[0]->captures());
  const std::vector<at::Tensor> in = {at::ones({512}, at::TensorOptions().device(kGpu))};
  const auto at_step = [&](int64_t step) {
    const std::vector<at::Tensor> out = {at::zeros_like(in[0])};
    std::shared_ptr<void> kept;
    Context context{{}, {}, {}, {}, {}, kept};
    context.pass.step = step;
    block.segments[0]->forward(context, in, out);
    return floats_of(out[0]);
  };
  const std::vector<float> first = at_step(1);
  EXPECT_NE(first_difference(at_step(2), first), -1);
  EXPECT_EQ(first_difference(at_step(1), first), -1);
  EXPECT_GT(largest(first), 1.5);

  const Block undeclared = adapt("drop", {}, drop, {{"x", {512}}}, {{"y", {512}}});
  std::shared_ptr<void> kept;
  Context context{{}, {}, {}, {}, {}, kept};
  const std::vector<at::Tensor> out = {at::zeros_like(in[0])};
  EXPECT_THROW(undeclared.segments[0]->forward(context, in, out), Error);
}

TEST_F(GpuOperators, ATeachersLossAgreesWithTheCpu) {
  ClassLossSpec spec;
  spec.logits = {"logits", {12, 10}};
  spec.targets = {"targets", {12}, at::kLong};
  spec.data = {spec.targets};
  spec.smoothing = 0.1;
  spec.temperature = 2;
  spec.mix = 0.7;
  spec.teacher = [](Tensors data) { return wave({12, 10}, 0.5, 3).to(data[0].device()); };
  const auto segment = class_loss(spec);
  EXPECT_FALSE(segment->captures());
  at::Tensor targets = at::arange(12, at::kLong).remainder(10);
  targets[3] = -1;
  const auto run = [&](at::Device place) {
    const auto bytes = [&](int64_t n) {
      return at::empty({n}, at::TensorOptions().dtype(at::kByte).device(place));
    };
    const at::Tensor saved = bytes(segment->saved_bytes()), work = bytes(segment->work_bytes());
    const auto span = [](const at::Tensor& memory) {
      return std::span(static_cast<std::byte*>(memory.data_ptr()),
                       static_cast<size_t>(memory.numel()));
    };
    std::shared_ptr<void> kept;
    Context context{{}, {}, {}, span(saved), span(work), kept};
    const std::vector<at::Tensor> in = {wave({12, 10}, 0, 3).to(place), targets.to(place)};
    const std::vector<at::Tensor> out = {
        at::empty({2}, at::TensorOptions().dtype(at::kDouble).device(place))};
    const std::vector<at::Tensor> grad = {at::zeros_like(in[0]), {}};
    segment->forward(context, in, out);
    segment->backward(context, in, out, std::vector<at::Tensor>(1), grad);
    return std::pair{floats_of(out[0]), floats_of(grad[0])};
  };
  const auto want = run(at::kCPU), got = run(kGpu), again = run(kGpu);
  // Logarithms and exponentials of two libraries, rounded to float32.
  EXPECT_LE(largest_difference(got.first, want.first), 1e-5 * largest(want.first));
  EXPECT_LE(largest_difference(got.second, want.second), 1e-5);
  EXPECT_EQ(first_difference(got.second, again.second), -1);
}

TEST_F(GpuOperators, MetricsOfADevicesTensorsAreTheHosts) {
  const std::vector<Border> borders = {{"features", {0}}, {"targets", {0}, at::kLong}};
  const at::Tensor logits = wave({32, 10}, 0).mul(3).round();  // with ties
  at::Tensor targets = at::arange(32, at::kLong).remainder(10);
  targets[5] = -1;
  for (const Task task : {Task::kTokens, Task::kClasses}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Metrics host(task, 10), there(task, 10);
      const std::vector<at::Tensor> data = {logits, targets},
                                    moved = {logits.to(kGpu), targets.to(kGpu)};
      host.add(3, 31, logits.to(type), data, borders);
      there.add(3, 31, logits.to(kGpu).to(type), moved, borders);
      EXPECT_EQ(there.report(), host.report()) << c10::toString(type);
    }
  }
}

}  // namespace
}  // namespace tutti
