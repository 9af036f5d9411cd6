// Rotary positions against complex numbers in float64. Tolerance: an element is two products of
// values rounded to float32, as are the table's: 3e-7 of the largest; column sums over 60 rows
// 2e-6.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/real.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

class Rotary : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, Rotary, testing::ValuesIn(kCodePaths), isa_name);

constexpr double kBase = 10000;

/// x [batch, length, heads, dim] with each head as dim / 2 complex numbers times e^(i t w).
at::Tensor turned(const at::Tensor& x) {
  const int64_t length = x.size(1), half = x.size(3) / 2;
  const at::Tensor frequencies =
      at::pow(kBase, at::arange(half, at::kDouble) / -static_cast<double>(half));
  const at::Tensor angles = at::outer(at::arange(length, at::kDouble), frequencies).unsqueeze(1);
  const at::Tensor product = at::complex(x.narrow(3, 0, half), x.narrow(3, half, half)) *
                             at::polar(at::ones_like(angles), angles);
  return at::cat({at::real(product), at::imag(product)}, 3);
}

TEST_P(Rotary, AgreesWithComplexNumbersForwardAndBackward) {
  for (const int64_t dim : {2, 6, 16, 30, 32, 64, 66, 128}) {
    const RotaryShape s{3, 20, 3, dim, 4 * dim + 5};  // something after the heads, of another size
    const int64_t rows = s.batch * s.length;
    Floats x = normals(rows * s.columns, 1), dx = normals(rows * s.columns, 3),
           dbias(s.columns, NAN);
    const Floats bias = normals(s.columns, 2), angles = rotary_table(s.length, dim, kBase);
    const at::Tensor tx = leaf(x, {s.batch, s.length, s.columns}), tb = leaf(bias, {s.columns});
    const at::Tensor sum = tx + tb;
    const at::Tensor heads = turned(sum.narrow(2, 0, 3 * dim).reshape({s.batch, s.length, 3, dim}));
    const at::Tensor y = at::cat(
        {heads.reshape({s.batch, s.length, 3 * dim}), sum.narrow(2, 3 * dim, s.columns - 3 * dim)},
        2);
    const auto grads =
        torch::autograd::grad({y}, {tx, tb}, {leaf(dx, {s.batch, s.length, s.columns}).detach()});
    table->rotary(x.data(), bias.data(), angles.data(), s);
    EXPECT_LT(distance(x, y), 3e-7) << dim;
    Floats without = dx;
    table->rotary_backward(dx.data(), angles.data(), dbias.data(), s);
    EXPECT_LT(distance(dx, grads[0]), 3e-7) << dim;
    EXPECT_LT(distance(dbias, grads[1]), 2e-6) << dim;
    table->rotary_backward(without.data(), angles.data(), nullptr, s);
    EXPECT_TRUE(same_bits(without, dx)) << dim;
  }
}

TEST_P(Rotary, WithoutABiasIsAsWithZeros) {
  const RotaryShape s{2, 7, 2, 10, 33};
  Floats a = normals(14 * 33, 1), b = a;
  const Floats angles = rotary_table(7, 10, kBase);
  table->rotary(a.data(), nullptr, angles.data(), s);
  table->rotary(b.data(), Floats(33, 0.0f).data(), angles.data(), s);
  EXPECT_TRUE(same_bits(a, b));
}

// What makes them positions: the product of a query at i and a key at j depends on i - j alone.
// 2e-6: a sum of 32 products.
TEST_P(Rotary, ProductsDependOnTheDistanceAlone) {
  const int64_t length = 40, dim = 32;
  const Floats query = normals(dim, 1), key = normals(dim, 2),
               angles = rotary_table(length, dim, kBase);
  Floats q, k;
  for (int64_t t = 0; t < length; ++t) {
    q.insert(q.end(), query.begin(), query.end());
    k.insert(k.end(), key.begin(), key.end());
  }
  const RotaryShape s{1, length, 1, dim, dim};
  table->rotary(q.data(), nullptr, angles.data(), s);
  table->rotary(k.data(), nullptr, angles.data(), s);
  const auto product = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < dim; ++c)
      sum += static_cast<double>(q[i * dim + c]) * static_cast<double>(k[j * dim + c]);
    return sum;
  };
  for (int64_t distance = 0; distance < 20; ++distance) {
    for (int64_t j = 1; j + distance < length; j += 6)
      EXPECT_NEAR(product(j + distance, j), product(distance, 0), 2e-6 * dim)
          << distance << " from " << j;
  }
  EXPECT_GT(std::abs(product(3, 0) - product(0, 0)), 0.1) << "and it does depend on it";
}

}  // namespace
}  // namespace tutti::test
