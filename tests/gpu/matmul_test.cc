// The GPU's matmuls against ATen in float64 on the CPU. Tolerances, of the largest value: float32 sums of up to 3072
// products 5e-6 (TF32 would be off by 1e-4); tensor cores align the products of a step before they add them, which
// costs some bits: 3e-5; a result of 16 bits is rounded once more.
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
    const at::Tensor ex = exact(x, {rows, in}), ew = exact(w, {out, in}), edy = exact(dy, {rows, out});
    const double rounded = this->sums + kRounding<A>;
    EXPECT_LT(distance(this->template run<A>(this->matmul.nt, x, w, rows, out, in), at::matmul(ex, ew.t())), rounded);
    EXPECT_LT(distance(this->template run<A>(this->matmul.nn, dy, w, rows, in, out), at::matmul(edy, ew)), rounded);
    EXPECT_LT(distance(this->template run<float>(this->matmul.tn, dy, x, out, in, rows), at::matmul(edy.t(), ex)),
              this->sums);
    EXPECT_LT(distance(this->template run<float>(this->matmul.nt_sums, x, w, rows, out, in), at::matmul(ex, ew.t())),
              this->sums);
    EXPECT_LT(distance(this->template run<float>(this->matmul.nn_sums, dy, w, rows, in, out), at::matmul(edy, ew)),
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

TYPED_TEST(GpuMatmul, AnEmptySumIsZeroAndAnEmptyResultIsLeft) {
  using A = TypeParam;
  const std::vector<A> some(24, static_cast<A>(1.0f));
  EXPECT_EQ(this->template run<A>(this->matmul.nt, some, some, 3, 4, 0), std::vector<A>(12, static_cast<A>(0.0f)));
  EXPECT_EQ(this->template run<A>(this->matmul.nn, some, some, 3, 4, 0), std::vector<A>(12, static_cast<A>(0.0f)));
  EXPECT_EQ(this->template run<float>(this->matmul.tn, some, some, 3, 4, 0), std::vector<float>(12, 0.0f));
  EXPECT_TRUE(this->template run<A>(this->matmul.nt, some, some, 0, 4, 6).empty());
  EXPECT_TRUE(this->template run<float>(this->matmul.tn, some, some, 4, 0, 6).empty());
}

}  // namespace
}  // namespace tutti
