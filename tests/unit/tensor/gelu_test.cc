// GELU, its derivative, bias and column sums against ATen in float64. Tolerance of an element: 3e-7 of max(1, |x|) (the
// exponential and the quotient round, the fit adds 2e-8); of column sums over 50 rows: 2e-6 of the largest.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

class GeluKernel : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, GeluKernel, testing::Values(Isa::kAvx2, Isa::kAvx512), isa_name);

Floats sweep() {
  Floats x;
  for (double v = -15; v <= 15; v += 0.0007) x.push_back(static_cast<float>(v));
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 50.0f, -50.0f, 1e4f, -1e4f}) x.push_back(v);
  return x;
}

struct Both {
  Floats value, derivative;
};
Both run(const Kernels& table, const Floats& x, Gelu kind) {
  Both r{Floats(x.size()), x};
  const Floats bias(x.size(), 0.0f);
  table.bias_gelu(r.derivative.data(), bias.data(), r.value.data(), 1, static_cast<int64_t>(x.size()), kind);
  return r;
}

TEST_P(GeluKernel, ValueAndDerivativeAgreeWithAtenFromTailToTail) {
  const Floats x = sweep();
  for (const Gelu kind : {Gelu::kExact, Gelu::kTanh}) {
    const Both got = run(*table, x, kind);
    const at::Tensor tx = leaf(x, {static_cast<int64_t>(x.size())});
    const at::Tensor y = at::gelu(tx, kind == Gelu::kTanh ? "tanh" : "none");
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

// The left tail, where 1 + erf would have lost everything: within 2e-5 relative down to -6 (x^2 / 2 = 18 rounds to
// 1e-6, the exponential passes that on, and tanh's cubic argument a little more).
TEST_P(GeluKernel, TheLeftTailKeepsItsRelativePrecision) {
  Floats x;
  for (double v = -6; v < -1; v += 0.01) x.push_back(static_cast<float>(v));
  const Both got = run(*table, x, Gelu::kExact);
  const at::Tensor tx = leaf(x, {static_cast<int64_t>(x.size())}).detach();
  const double* want = nullptr;
  const at::Tensor y = tx * 0.5 * (tx * -std::sqrt(0.5)).erfc();
  want = y.const_data_ptr<double>();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got.value[i] / want[i], 1, 2e-5) << x[i];
}

TEST_P(GeluKernel, AnElementsBitsDoNotDependOnItsPlace) {
  const Floats x = normals(70, 1, 2);
  for (const Gelu kind : {Gelu::kExact, Gelu::kTanh}) {
    const Both all = run(*table, x, kind);
    for (size_t i = 0; i < x.size(); ++i) {
      const Both one = run(*table, {x[i]}, kind);
      EXPECT_TRUE(same_bits(one.value.data(), &all.value[i], 1) &&
                  same_bits(one.derivative.data(), &all.derivative[i], 1));
    }
  }
}

TEST_P(GeluKernel, BiasIsAddedBeforeAndBackwardMultipliesAndSums) {
  const int64_t rows = 50, cols = 37;
  Floats h = normals(rows * cols, 1), g(h.size()), dbias(cols, 5.0f);
  const Floats bias = normals(cols, 2), dg = normals(rows * cols, 3);
  const at::Tensor th = leaf(h, {rows, cols}), tb = leaf(bias, {cols});
  const at::Tensor y = at::gelu(th + tb);
  const auto grads = torch::autograd::grad({y}, {th, tb}, {leaf(dg, {rows, cols}).detach()});
  table->bias_gelu(h.data(), bias.data(), g.data(), rows, cols, Gelu::kExact);
  EXPECT_LT(distance(g, y), 1e-6);
  Floats dh = dg;
  table->gelu_backward(dh.data(), h.data(), dh.data(), dbias.data(), rows, cols);
  EXPECT_LT(distance(dh, grads[0]), 1e-6);
  EXPECT_LT(distance(dbias, grads[1]), 2e-6);
}

TEST_P(GeluKernel, NotANumberAndInfinityPassThrough) {
  const Both got = run(*table, {NAN, INFINITY, 1.0f}, Gelu::kExact);
  EXPECT_TRUE(std::isnan(got.value[0]));
  EXPECT_FALSE(std::isfinite(got.value[1]));
  EXPECT_TRUE(std::isfinite(got.value[2]));
}

TEST_P(GeluKernel, AddBiasAndColumnSumsAreWhatTheySay) {
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
