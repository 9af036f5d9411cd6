// Layer norm, RMS norm and batch norm against ATen in float64. Tolerance: a row's sums run over up to 384
// floats in 16 or more partial sums, and weight gradients over up to 67 rows, so a few roundings of
// 6e-8 each: 2e-6 of the largest value.
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-6;
class Norm : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, Norm, testing::ValuesIn(kCodePaths), isa_name);

struct Result {
  Floats y, mean, rstd, dx, dgamma, dbeta;
};

Result run(const Kernels& table, const Floats& x, const Floats& gamma, const Floats& beta,
           const Floats& dy, const Floats& residual, int64_t rows, int64_t cols) {
  Result r{Floats(x.size()), Floats(rows),       Floats(rows),
           Floats(x.size()), Floats(cols, 9.0f), Floats(cols, 9.0f)};
  table.layer_norm(x.data(), gamma.data(), beta.data(), r.y.data(), r.mean.data(), r.rstd.data(),
                   rows, cols, 1e-5f);
  if (!residual.empty()) r.dx = residual;
  table.layer_norm_backward(dy.data(), x.data(), r.mean.data(), r.rstd.data(), gamma.data(),
                            residual.empty() ? nullptr : r.dx.data(), r.dx.data(), r.dgamma.data(),
                            r.dbeta.data(), rows, cols);
  return r;
}

TEST_P(Norm, AgreesWithAtenForwardAndBackwardAtAnyWidth) {
  for (const int64_t cols : {2, 3, 8, 15, 16, 17, 64, 100, 192, 384}) {
    const int64_t rows = cols == 384 ? 67 : 5;
    const Floats x = normals(rows * cols, 1, 3), gamma = normals(cols, 2), beta = normals(cols, 3);
    const Floats dy = normals(rows * cols, 4), residual = normals(rows * cols, 5);
    const Result got = run(*table, x, gamma, beta, dy, residual, rows, cols);
    const at::Tensor tx = leaf(x, {rows, cols}), tg = leaf(gamma, {cols}), tb = leaf(beta, {cols});
    const at::Tensor y = at::layer_norm(tx, {cols}, tg, tb, 1e-5);
    const auto grads = torch::autograd::grad({y}, {tx, tg, tb}, {leaf(dy, {rows, cols}).detach()});
    EXPECT_LT(distance(got.y, y), kTolerance) << cols;
    EXPECT_LT(distance(got.dx, grads[0] + leaf(residual, {rows, cols})), kTolerance) << cols;
    EXPECT_LT(distance(got.dgamma, grads[1]), kTolerance) << cols;
    EXPECT_LT(distance(got.dbeta, grads[2]), kTolerance) << cols;
  }
}

TEST_P(Norm, OfColumnsAgreesWithAtenForwardAndBackward) {
  for (const int64_t cols : {1, 15, 17, 64, 100}) {
    for (const int64_t rows : {5, 32, 33, 200}) {
      const Floats x = normals(rows * cols, 1, 3), gamma = normals(cols, 2),
                   beta = normals(cols, 3), dy = normals(rows * cols, 4);
      Floats mean(cols), variance(cols), y(x.size()), dx = dy, dgamma(cols), dbeta(cols);
      table->column_moments(x.data(), mean.data(), variance.data(), rows, cols);
      Floats rstd = variance;
      for (float& v : rstd) v = 1 / std::sqrt(v + 1e-5f);
      table->batch_norm(x.data(), mean.data(), rstd.data(), gamma.data(), beta.data(), y.data(),
                        rows, cols);
      table->batch_norm_backward(dx.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                                 dx.data(), dgamma.data(), dbeta.data(), rows, cols);
      const at::Tensor tx = leaf(x, {rows, cols}), tg = leaf(gamma, {cols}),
                       tb = leaf(beta, {cols});
      const at::Tensor want = at::batch_norm(tx, tg, tb, {}, {}, true, 0.1, 1e-5, false);
      const auto grads =
          torch::autograd::grad({want}, {tx, tg, tb}, {leaf(dy, {rows, cols}).detach()});
      EXPECT_LT(distance(mean, tx.mean(0)), kTolerance) << rows << " x " << cols;
      EXPECT_LT(distance(y, want), kTolerance) << rows << " x " << cols;
      EXPECT_LT(distance(dx, grads[0]), kTolerance) << rows << " x " << cols;
      EXPECT_LT(distance(dgamma, grads[1]), kTolerance) << rows << " x " << cols;
      EXPECT_LT(distance(dbeta, grads[2]), kTolerance) << rows << " x " << cols;
    }
  }
}

TEST_P(Norm, WithoutResidualTheGradientIsTheNormsAlone) {
  const int64_t rows = 3, cols = 50;
  const Floats x = normals(rows * cols, 1), gamma = normals(cols, 2), beta = normals(cols, 3),
               dy = normals(rows * cols, 4);
  const Floats alone = run(*table, x, gamma, beta, dy, {}, rows, cols).dx;
  const Floats zeros(x.size(), 0.0f);
  EXPECT_TRUE(same_bits(alone, run(*table, x, gamma, beta, dy, zeros, rows, cols).dx));
}

TEST_P(Norm, ARowsBitsDependOnNoOtherRowAndRepeat) {
  const int64_t rows = 9, cols = 77;
  const Floats x = normals(rows * cols, 1), gamma = normals(cols, 2), beta = normals(cols, 3),
               dy = normals(rows * cols, 4);
  const Result all = run(*table, x, gamma, beta, dy, {}, rows, cols),
               again = run(*table, x, gamma, beta, dy, {}, rows, cols);
  EXPECT_TRUE(same_bits(all.dx, again.dx) && same_bits(all.dgamma, again.dgamma));
  for (int64_t r = 0; r < rows; ++r) {
    const Floats x1(x.begin() + r * cols, x.begin() + (r + 1) * cols),
        dy1(dy.begin() + r * cols, dy.begin() + (r + 1) * cols);
    const Result one = run(*table, x1, gamma, beta, dy1, {}, 1, cols);
    EXPECT_TRUE(same_bits(one.y.data(), all.y.data() + r * cols, cols));
    EXPECT_TRUE(same_bits(one.dx.data(), all.dx.data() + r * cols, cols));
  }
}

TEST_P(Norm, NotANumberInARowReachesThatRowsOutput) {
  Floats x = normals(2 * 20, 1), ones(20, 1.0f), zeros(20, 0.0f);
  x[25] = NAN;
  const Result got = run(*table, x, ones, zeros, x, {}, 2, 20);
  EXPECT_TRUE(std::isfinite(got.y[0]));
  EXPECT_TRUE(std::isnan(got.y[20]));
}

TEST_P(Norm, WithoutBetaIsAsWithZeros) {
  const int64_t rows = 4, cols = 35;
  const Floats x = normals(rows * cols, 1), gamma = normals(cols, 2), dy = normals(rows * cols, 4);
  const Result zeros = run(*table, x, gamma, Floats(cols, 0.0f), dy, {}, rows, cols);
  Floats y(x.size()), dx(x.size()), dgamma(cols), mean(rows), rstd(rows);
  table->layer_norm(x.data(), gamma.data(), nullptr, y.data(), mean.data(), rstd.data(), rows, cols,
                    1e-5f);
  table->layer_norm_backward(dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), nullptr,
                             dx.data(), dgamma.data(), nullptr, rows, cols);
  EXPECT_TRUE(same_bits(y, zeros.y) && same_bits(dx, zeros.dx) && same_bits(dgamma, zeros.dgamma));
}

struct RmsResult {
  Floats y, rstd, dx, dgamma;
};

RmsResult run_rms(const Kernels& table, const Floats& x, const Floats& gamma, const Floats& dy,
                  const Floats& residual, int64_t rows, int64_t cols) {
  RmsResult r{Floats(x.size(), NAN), Floats(rows), dy, Floats(cols, 9.0f)};
  table.rms_norm(x.data(), gamma.data(), r.y.data(), r.rstd.data(), rows, cols, 1e-5f);
  // In place: dx is dy.
  table.rms_norm_backward(r.dx.data(), x.data(), r.rstd.data(), gamma.data(),
                          residual.empty() ? nullptr : residual.data(), r.dx.data(),
                          r.dgamma.data(), rows, cols);
  return r;
}

TEST_P(Norm, OfSquaresAgreesWithAtenForwardAndBackwardAtAnyWidth) {
  for (const int64_t cols : {1, 2, 3, 8, 15, 16, 17, 64, 100, 192, 384}) {
    const int64_t rows = cols == 384 ? 67 : 5;
    const Floats x = normals(rows * cols, 1, 3), gamma = normals(cols, 2),
                 dy = normals(rows * cols, 4);
    const Floats residual = normals(rows * cols, 5);
    const at::Tensor tx = leaf(x, {rows, cols}), tg = leaf(gamma, {cols});
    const at::Tensor y = at::rms_norm(tx, {cols}, tg, 1e-5);
    const auto grads = torch::autograd::grad({y}, {tx, tg}, {leaf(dy, {rows, cols}).detach()});
    const RmsResult got = run_rms(*table, x, gamma, dy, residual, rows, cols);
    EXPECT_LT(distance(got.y, y), kTolerance) << cols;
    EXPECT_LT(distance(got.dx, grads[0] + leaf(residual, {rows, cols})), kTolerance) << cols;
    EXPECT_LT(distance(got.dgamma, grads[1]), kTolerance) << cols;
    const Floats zeros(x.size(), 0.0f);
    EXPECT_TRUE(same_bits(run_rms(*table, x, gamma, dy, {}, rows, cols).dx,
                          run_rms(*table, x, gamma, dy, zeros, rows, cols).dx));
  }
}

TEST_P(Norm, OfSquaresARowsBitsDependOnNoOtherRow) {
  const int64_t rows = 9, cols = 77;
  const Floats x = normals(rows * cols, 1), gamma = normals(cols, 2), dy = normals(rows * cols, 4);
  const RmsResult all = run_rms(*table, x, gamma, dy, {}, rows, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const Floats x1(x.begin() + r * cols, x.begin() + (r + 1) * cols),
        dy1(dy.begin() + r * cols, dy.begin() + (r + 1) * cols);
    const RmsResult one = run_rms(*table, x1, gamma, dy1, {}, 1, cols);
    EXPECT_TRUE(same_bits(one.y.data(), all.y.data() + r * cols, cols));
    EXPECT_TRUE(same_bits(one.dx.data(), all.dx.data() + r * cols, cols));
  }
}

}  // namespace
}  // namespace tutti::test
