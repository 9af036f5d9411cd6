// The GPU's matmuls against ATen in float64 on the CPU. Tolerances, of the largest value: float32
// sums of up to 3072 products 5e-6 (TF32 would be off by 1e-4); tensor cores align the products of
// a step before they add them, which costs some bits: 3e-5; a result of 16 bits is rounded once
// more.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/matmul.h>

#include "gpu/compare.h"

namespace tutti {
namespace {

template <class A>
class GpuMatmul : public GpuTest {
 protected:
  const MatmulFor<A>& matmul = table_of<A>(library).matmul;
  static constexpr double sums = std::is_same_v<A, float> ? 5e-6 : 3e-5;

  template <class C>
  std::vector<C> run(typename MatmulFor<A>::template Product<C> product, const std::vector<A>& a,
                     const std::vector<A>& b, int64_t m, int64_t n, int64_t k) {
    const GpuArray<A> left(*device, stream, a), right(*device, stream, b);
    const GpuArray<C> out(*device, stream, unwritten<C>(m * n));
    product(left.data(), right.data(), out.data(), m, n, k, nullptr);
    return out.get();
  }
};
TYPED_TEST_SUITE(GpuMatmul, Activations);

struct Layer {
  int64_t rows, in, out;
};
const Layer kLayers[] = {{512, 192, 768}, {2048, 768, 2304}, {1024, 3072, 768}, {256, 768, 50304},
                         {77, 33, 65},    {1, 7, 5},         {5, 1, 3}};

TYPED_TEST(GpuMatmul, ProductsOfALayerAgreeWithAten) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const auto& [rows, in, out] : kLayers) {
    SCOPED_TRACE(fmt::format("rows {} in {} out {}, seed {}", rows, in, out, kSeed));
    const std::vector<A> x = normals<A>(random, rows * in), w = normals<A>(random, out * in, 0.1f),
                         dy = normals<A>(random, rows * out);
    const at::Tensor ex = exact(x, {rows, in}), ew = exact(w, {out, in}),
                     edy = exact(dy, {rows, out});
    const double rounded = this->sums + kRounding<A>;
    EXPECT_LT(distance(this->template run<A>(this->matmul.nt, x, w, rows, out, in),
                       at::matmul(ex, ew.t())),
              rounded);
    EXPECT_LT(
        distance(this->template run<A>(this->matmul.nn, dy, w, rows, in, out), at::matmul(edy, ew)),
        rounded);
    EXPECT_LT(distance(this->template run<float>(this->matmul.tn, dy, x, out, in, rows),
                       at::matmul(edy.t(), ex)),
              this->sums);
    EXPECT_LT(distance(this->template run<float>(this->matmul.nt_sums, x, w, rows, out, in),
                       at::matmul(ex, ew.t())),
              this->sums);
    EXPECT_LT(distance(this->template run<float>(this->matmul.nn_sums, dy, w, rows, in, out),
                       at::matmul(edy, ew)),
              this->sums);
    EXPECT_EQ(this->matmul.work(rows, out, in), 0);
  }
}

TYPED_TEST(GpuMatmul, RepeatsBitForBit) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const auto& [rows, in, out] : kLayers) {
    SCOPED_TRACE(fmt::format("rows {} in {} out {}, seed {}", rows, in, out, kSeed));
    const std::vector<A> x = normals<A>(random, rows * in), w = normals<A>(random, out * in, 0.1f),
                         dy = normals<A>(random, rows * out);
    const auto nt = this->template run<A>(this->matmul.nt, x, w, rows, out, in);
    const auto nn = this->template run<A>(this->matmul.nn, dy, w, rows, in, out);
    const auto tn = this->template run<float>(this->matmul.tn, dy, x, out, in, rows);
    for (int again = 0; again < 5; ++again) {
      expect_same_bits(this->template run<A>(this->matmul.nt, x, w, rows, out, in), nt, "nt");
      expect_same_bits(this->template run<A>(this->matmul.nn, dy, w, rows, in, out), nn, "nn");
      expect_same_bits(this->template run<float>(this->matmul.tn, dy, x, out, in, rows), tn, "tn");
    }
  }
}

/// What the fused products leave.
template <class A>
struct Fused {
  bool linear, activation, backward;
  std::vector<A> biased, added, left, active, dleft;
};

template <class A>
class GpuFused : public GpuMatmul<A> {
 protected:
  Fused<A> run_all(const Layer& layer, const std::vector<A>& x, const std::vector<A>& w,
                   const std::vector<A>& bias, const std::vector<A>& residual) {
    const auto& [rows, in, out] = layer;
    const FusedFor<A>& fused = table_of<A>(this->library).fused;
    const auto array = [&](const std::vector<A>& values) {
      return GpuArray<A>(*this->device, this->stream, values);
    };
    const GpuArray<A> gx = array(x), gw = array(w), gbias = array(bias),
                      gresidual = array(residual);
    const GpuArray<A> biased = array(unwritten<A>(rows * out)),
                      added = array(unwritten<A>(rows * out)),
                      left = array(unwritten<A>(rows * out)),
                      active = array(unwritten<A>(rows * out)),
                      dleft = array(unwritten<A>(rows * out));
    Fused<A> all{};
    all.linear =
        fused.linear(gx.data(), gw.data(), gbias.data(), nullptr, biased.data(), rows, out, in) &&
        fused.linear(gx.data(), gw.data(), gbias.data(), gresidual.data(), added.data(), rows, out,
                     in);
    all.activation = fused.linear_activation(gx.data(), gw.data(), gbias.data(), left.data(),
                                             active.data(), rows, out, in, Activation::kGeluTanh);
    // x is the gradient of what a layer from `out` to `in` puts out: its weight is [in, out], which
    // w's memory holds.
    all.backward = fused.linear_activation_backward(
        gx.data(), gw.data(), gresidual.data(), dleft.data(), rows, in, out, Activation::kGeluTanh);
    EXPECT_FALSE(fused.linear_activation(gx.data(), gw.data(), gbias.data(), left.data(),
                                         active.data(), rows, out, in, Activation::kSilu));
    all.biased = biased.get(), all.added = added.get(), all.left = left.get(),
    all.active = active.get(), all.dleft = dleft.get();
    return all;
  }
};
TYPED_TEST_SUITE(GpuFused, Activations);

// cuBLASLt's GELU is good to 16 bits: twice the rounding.
TYPED_TEST(GpuFused, AgreeWithAtenAndRepeatBitForBit) {
  using A = TypeParam;
  std::mt19937_64 random(kSeed);
  for (const Layer& layer : kLayers) {
    const auto& [rows, in, out] = layer;
    SCOPED_TRACE(fmt::format("rows {} in {} out {}, seed {}", rows, in, out, kSeed));
    const std::vector<A> x = normals<A>(random, rows * in), w = normals<A>(random, out * in, 0.1f),
                         bias = normals<A>(random, out), residual = normals<A>(random, rows * out);
    const Fused<A> got = this->run_all(layer, x, w, bias, residual);
    const bool fits = !std::is_same_v<A, float> && in % 8 == 0 && out % 8 == 0;
    EXPECT_EQ(got.linear, fits);
    EXPECT_EQ(got.activation, fits);
    EXPECT_EQ(got.backward, fits);
    if (!fits) continue;
    const at::Tensor ex = exact(x, {rows, in}), eresidual = exact(residual, {rows, out});
    const at::Tensor sum = at::matmul(ex, exact(w, {out, in}).t()) + exact(bias, {out});
    const double rounded = this->sums + kRounding<A>;
    EXPECT_LT(distance(got.biased, sum), rounded);
    EXPECT_LT(distance(got.added, sum + eresidual), rounded);
    EXPECT_LT(distance(got.left, sum), rounded);
    EXPECT_LT(distance(got.active, at::gelu(sum, "tanh")), 2 * rounded);
    EXPECT_LT(distance(got.dleft,
                       at::gelu_backward(at::matmul(ex, exact(w, {in, out})), eresidual, "tanh")),
              2 * rounded);
    for (int again = 0; again < 3; ++again) {
      const Fused<A> repeated = this->run_all(layer, x, w, bias, residual);
      expect_same_bits(repeated.biased, got.biased, "with bias");
      expect_same_bits(repeated.added, got.added, "with bias and residual");
      expect_same_bits(repeated.left, got.left, "before GELU");
      expect_same_bits(repeated.active, got.active, "with GELU");
      expect_same_bits(repeated.dleft, got.dleft, "with GELU's derivative");
    }
  }
}

TYPED_TEST(GpuMatmul, AnEmptySumIsZeroAndAnEmptyResultIsLeft) {
  using A = TypeParam;
  const std::vector<A> some(24, static_cast<A>(1.0f));
  EXPECT_EQ(this->template run<A>(this->matmul.nt, some, some, 3, 4, 0),
            std::vector<A>(12, static_cast<A>(0.0f)));
  EXPECT_EQ(this->template run<A>(this->matmul.nn, some, some, 3, 4, 0),
            std::vector<A>(12, static_cast<A>(0.0f)));
  EXPECT_EQ(this->template run<float>(this->matmul.tn, some, some, 3, 4, 0),
            std::vector<float>(12, 0.0f));
  EXPECT_TRUE(this->template run<A>(this->matmul.nt, some, some, 0, 4, 6).empty());
  EXPECT_TRUE(this->template run<float>(this->matmul.tn, some, some, 4, 0, 6).empty());
}

}  // namespace
}  // namespace tutti
