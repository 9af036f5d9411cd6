// Activations, their derivatives, bias and column sums against ATen in float64. Tolerance of an
// element: 3e-7 of max(1, |x|) (the exponential and the quotient round, the fit adds 2e-8); of
// column sums over 50 rows: 2e-6 of the largest.
#include <ATen/TensorOperators.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

class ActivationKernel : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, ActivationKernel, testing::ValuesIn(kCodePaths), isa_name);

Floats sweep() {
  Floats x;
  for (double v = -15; v <= 15; v += 0.0007) x.push_back(static_cast<float>(v));
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 50.0f, -50.0f, 1e4f, -1e4f}) x.push_back(v);
  return x;
}

struct Both {
  Floats value, derivative;
};
Both run(const Kernels& table, const Floats& x, Activation kind) {
  Both r{Floats(x.size()), x};
  const Floats bias(x.size(), 0.0f);
  table.bias_activation(r.derivative.data(), bias.data(), r.value.data(), 1,
                        static_cast<int64_t>(x.size()), kind);
  return r;
}

at::Tensor aten(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kLeakyRelu:
      return at::leaky_relu(x);
    case Activation::kElu:
      return at::elu(x);
    case Activation::kSwiglu:
      break;  // a product of two inputs, which is not in kAll
  }
  return x;
}

constexpr Activation kAll[] = {Activation::kGelu,      Activation::kGeluTanh, Activation::kRelu,
                               Activation::kSilu,      Activation::kTanh,     Activation::kSigmoid,
                               Activation::kLeakyRelu, Activation::kElu};

TEST_P(ActivationKernel, ValueAndDerivativeAgreeWithAtenFromTailToTail) {
  const Floats x = sweep();
  for (const Activation kind : kAll) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Both got = run(*table, x, kind);
    const at::Tensor tx = leaf(x, {static_cast<int64_t>(x.size())});
    const at::Tensor y = aten(kind, tx);
    const at::Tensor d = torch::autograd::grad({y.sum()}, {tx})[0];
    const double *wy = y.const_data_ptr<double>(), *wd = d.const_data_ptr<double>();
    double worst = 0, worst_derivative = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double unit = std::max(1.0, std::abs(static_cast<double>(x[i])));
      worst = std::max(worst, std::abs(got.value[i] - wy[i]) / unit);
      worst_derivative = std::max(worst_derivative, std::abs(got.derivative[i] - wd[i]) / unit);
    }
    EXPECT_LT(worst, 3e-7);
    EXPECT_LT(worst_derivative, 3e-7);
  }
}

// The left tail, where 1 + erf would have lost everything: within 2e-5 relative down to -6 (x^2 / 2
// = 18 rounds to 1e-6, the exponential passes that on, and tanh's cubic argument a little more).
TEST_P(ActivationKernel, TheLeftTailKeepsItsRelativePrecision) {
  Floats x;
  for (double v = -6; v < -1; v += 0.01) x.push_back(static_cast<float>(v));
  const Both got = run(*table, x, Activation::kGelu);
  const at::Tensor tx = leaf(x, {static_cast<int64_t>(x.size())}).detach();
  const double* want = nullptr;
  const at::Tensor y = tx * 0.5 * (tx * -std::sqrt(0.5)).erfc();
  want = y.const_data_ptr<double>();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got.value[i] / want[i], 1, 2e-5) << x[i];
}

TEST_P(ActivationKernel, AnElementsBitsDoNotDependOnItsPlace) {
  const Floats x = normals(70, 1, 2);
  for (const Activation kind : kAll) {
    const Both all = run(*table, x, kind);
    for (size_t i = 0; i < x.size(); ++i) {
      const Both one = run(*table, {x[i]}, kind);
      EXPECT_TRUE(same_bits(one.value.data(), &all.value[i], 1) &&
                  same_bits(one.derivative.data(), &all.derivative[i], 1));
    }
  }
}

TEST_P(ActivationKernel, BiasIsAddedBeforeAndBackwardMultipliesAndSums) {
  const int64_t rows = 50, cols = 37;
  Floats h = normals(rows * cols, 1), g(h.size()), dbias(cols, 5.0f);
  const Floats bias = normals(cols, 2), dg = normals(rows * cols, 3);
  const at::Tensor th = leaf(h, {rows, cols}), tb = leaf(bias, {cols});
  const at::Tensor y = at::gelu(th + tb);
  const auto grads = torch::autograd::grad({y}, {th, tb}, {leaf(dg, {rows, cols}).detach()});
  table->bias_activation(h.data(), bias.data(), g.data(), rows, cols, Activation::kGelu);
  EXPECT_LT(distance(g, y), 1e-6);
  Floats dh = dg;
  table->activation_backward(dh.data(), h.data(), dh.data(), dbias.data(), rows, cols,
                             Activation::kGelu);
  EXPECT_LT(distance(dh, grads[0]), 1e-6);
  EXPECT_LT(distance(dbias, grads[1]), 2e-6);
}

TEST_P(ActivationKernel, NotANumberAndInfinityPassThrough) {
  for (const Activation kind : kAll) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Both got = run(*table, {NAN, INFINITY, 1.0f}, kind);
    const bool bounded = kind == Activation::kTanh || kind == Activation::kSigmoid;
    EXPECT_TRUE(std::isnan(got.value[0]));
    EXPECT_EQ(std::isfinite(got.value[1]), bounded);
    EXPECT_TRUE(std::isfinite(got.value[2]));
  }
}

// Where 1 - 2 / (1 + e^2x) and e^x - 1 would have lost everything.
TEST_P(ActivationKernel, SmallValuesKeepTheirRelativePrecision) {
  Floats x;
  for (double v = 1e-7; v < 1; v *= 1.07) x.push_back(static_cast<float>(-v));
  const Both tanh = run(*table, x, Activation::kTanh), elu = run(*table, x, Activation::kElu);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(tanh.value[i] / std::tanh(static_cast<double>(x[i])), 1, 5e-7) << x[i];
    EXPECT_NEAR(elu.value[i] / std::expm1(static_cast<double>(x[i])), 1, 5e-7) << x[i];
  }
}

TEST_P(ActivationKernel, SwigluAgreesWithAtenForwardAndBackward) {
  for (const int64_t cols : {1, 7, 16, 37, 64}) {
    const int64_t rows = 50;
    Floats h = normals(rows * 2 * cols, 1, 2), g(rows * cols, NAN), dbias(2 * cols, NAN);
    const Floats bias = normals(2 * cols, 2), dg = normals(rows * cols, 3);
    const at::Tensor th = leaf(h, {rows, 2 * cols}), tb = leaf(bias, {2 * cols});
    const auto halves = (th + tb).chunk(2, 1);
    const at::Tensor y = at::silu(halves[0]) * halves[1];
    const auto grads = torch::autograd::grad({y}, {th, tb}, {leaf(dg, {rows, cols}).detach()});
    table->bias_swiglu(h.data(), bias.data(), g.data(), rows, cols);
    EXPECT_LT(distance(g, y), 1e-6) << cols;
    Floats dh(h.size(), NAN);
    table->swiglu_backward(dg.data(), h.data(), dh.data(), dbias.data(), rows, cols);
    EXPECT_LT(distance(dh, grads[0]), 1e-6) << cols;
    EXPECT_LT(distance(dbias, grads[1]), 2e-6) << cols;
    table->swiglu_backward(dg.data(), h.data(), h.data(), nullptr, rows, cols);
    EXPECT_TRUE(same_bits(h, dh)) << "in place, without the bias";
  }
}

TEST_P(ActivationKernel, WithoutABiasIsAsWithZeros) {
  const int64_t rows = 5, cols = 22;
  const Floats h = normals(rows * 2 * cols, 1), zeros(2 * cols, 0.0f);
  const auto forward = [&](const float* bias) {
    Floats kept = h, gated(rows * cols), derivative = h, active(h.size());
    table->bias_swiglu(kept.data(), bias, gated.data(), rows, cols);
    table->bias_activation(derivative.data(), bias, active.data(), rows, 2 * cols,
                           Activation::kSilu);
    Floats all = kept;
    for (const Floats* more : {&gated, &derivative, &active})
      all.insert(all.end(), more->begin(), more->end());
    return all;
  };
  EXPECT_TRUE(same_bits(forward(nullptr), forward(zeros.data())));
}

TEST_P(ActivationKernel, AddBiasAndColumnSumsAreWhatTheySay) {
  const int64_t rows = 50, cols = 29;
  Floats x = normals(rows * cols, 1), sums(cols, 3.0f);
  const Floats bias = normals(cols, 2);
  const at::Tensor want = leaf(x, {rows, cols}) + leaf(bias, {cols});
  table->add_bias(x.data(), bias.data(), rows, cols);
  EXPECT_LT(distance(x, want), 2e-7);
  table->column_sums(x.data(), sums.data(), rows, cols);
  EXPECT_LT(distance(sums, want.sum(0)), 2e-6);
}

}  // namespace
}  // namespace tutti::test
