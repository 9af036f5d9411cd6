// The GPU's causal attention, by cuDNN and by the own kernels, against ATen's explicit softmax in
// float64 on the CPU. Tolerances, of the largest value: in float32 a score's absolute error becomes
// a relative one of its probability: 1e-5. cuDNN rounds probabilities and their gradients to A
// before it multiplies with them, and a result is rounded once more: 3 roundings of the output, 8
// of the gradients, which are differences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "gpu/compare.h"

namespace tutti {
namespace {

template <class A>
struct Attended {
  std::vector<A> qkv, out, dqkv;
  std::vector<float> lse, dbias;
};
template <class A>
struct Given {
  std::vector<A> qkv, dout;
  std::vector<float> bias;
};

template <class A>
Given<A> draw(const AttentionShape& s) {
  std::mt19937_64 random(kSeed);
  const int64_t rows = s.batch * s.length;
  return {normals<A>(random, rows * s.columns()), normals<A>(random, rows * s.heads * s.dim),
          random_floats(random, static_cast<size_t>(s.columns()), 0.3f)};
}

std::string name(const AttentionShape& s) {
  return fmt::format("batch {} length {} heads {}/{} dim {}, seed {}", s.batch, s.length, s.heads,
                     s.kv_heads, s.dim, kSeed);
}

template <class A>
class GpuAttention : public GpuTest {
 protected:
  const KernelsFor<A>& table = table_of<A>(library);

  Attended<A> run(const AttentionShape& s, const Given<A>& given, bool biased = true) {
    const int64_t rows = s.batch * s.length, width = s.heads * s.dim;
    const GpuArray<A> qkv(*device, stream, given.qkv), dout(*device, stream, given.dout);
    const GpuArray<A> out(*device, stream, unwritten<A>(rows * width));
    const GpuArray<A> dqkv(*device, stream, unwritten<A>(rows * s.columns()));
    const GpuArray<float> bias(*device, stream, given.bias),
        lse(*device, stream, unwritten<float>(rows * s.heads));
    const GpuArray<float> dbias(*device, stream, unwritten<float>(s.columns()));
    EXPECT_EQ(table.attention_work(s), 0);
    table.attention(qkv.data(), biased ? bias.data() : nullptr, out.data(), lse.data(), nullptr, s);
    table.attention_backward(dout.data(), qkv.data(), out.data(), lse.data(), dqkv.data(),
                             biased ? dbias.data() : nullptr, nullptr, s);
    return {qkv.get(), out.get(), dqkv.get(), lse.get(), dbias.get()};
  }

  void compare(const AttentionShape& s) {
    SCOPED_TRACE(name(s));
    const Given<A> given = draw<A>(s);
    const Attended<A> got = run(s, given);
    expect_biased(got.qkv, given);
    const at::Tensor x =
        exact(got.qkv, {s.batch, s.length, s.heads + 2 * s.kv_heads, s.dim}).requires_grad_(true);
    const at::Tensor split = x.transpose(1, 2), q = split.narrow(1, 0, s.heads);
    const auto shared = [&](int64_t first) {
      return split.narrow(1, first, s.kv_heads)
          .unsqueeze(2)
          .expand({s.batch, s.kv_heads, s.group(), s.length, s.dim})
          .reshape({s.batch, s.heads, s.length, s.dim});
    };
    const at::Tensor k = shared(s.heads), v = shared(s.heads + s.kv_heads);
    const at::Tensor hidden = at::ones({s.length, s.length}, at::kBool).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(s.dim)))
            .masked_fill(hidden, -INFINITY);
    const at::Tensor out = at::matmul(at::softmax(scores, -1), v).transpose(1, 2);
    const at::Tensor dx = torch::autograd::grad(
        {out}, {x}, {exact(given.dout, {s.batch, s.length, s.heads, s.dim})})[0];
    EXPECT_LT(distance(got.out, out), 1e-5 + 3 * kRounding<A>);
    // cuDNN's power of two is approximate
    const double lse_tolerance = std::is_same_v<A, float> ? 5e-6 : 2e-4;
    EXPECT_LT(distance(got.lse, scores.logsumexp(-1)), lse_tolerance);
    EXPECT_LT(distance(got.dqkv, dx), 1e-5 + 8 * kRounding<A>);
    expect_sums(got, s);
  }

  /// The bias is added in float32 and rounded once.
  void expect_biased(const std::vector<A>& qkv, const Given<A>& given) {
    std::vector<A> want(given.qkv.size());
    for (size_t i = 0; i < want.size(); ++i)
      want[i] =
          static_cast<A>(static_cast<float>(given.qkv[i]) + given.bias[i % given.bias.size()]);
    expect_same_bits(qkv, want, "qkv with its bias");
  }

  /// float32 sums of what was written: a millionth of the sum of the sizes.
  void expect_sums(const Attended<A>& got, const AttentionShape& s) {
    for (int64_t c = 0; c < s.columns(); ++c) {
      double sum = 0, sizes = 0;
      for (int64_t r = 0; r < s.batch * s.length; ++r) {
        const double value = static_cast<float>(got.dqkv[r * s.columns() + c]);
        sum += value, sizes += std::abs(value);
      }
      ASSERT_NEAR(got.dbias[c], sum, 1e-6 * sizes + 1e-30) << "column " << c;
    }
  }
};
TYPED_TEST_SUITE(GpuAttention, Activations);

const AttentionShape kKjv{4, 128, 6, 32}, kLlama{4, 128, 6, 32, 2}, kGpt2{2, 1024, 12, 64};

TYPED_TEST(GpuAttention, AgreesWithAten) {
  for (const AttentionShape& s :
       {kKjv, kLlama, kGpt2, AttentionShape{2, 77, 6, 64}, AttentionShape{3, 77, 6, 32, 3},
        AttentionShape{1, 130, 4, 128, 1}, AttentionShape{2, 64, 2, 8}}) {
    this->compare(s);
  }
}

TYPED_TEST(GpuAttention, AgreesWithAtenWhereCudnnHasNoKernel) {
  for (const AttentionShape& s : {AttentionShape{2, 100, 3, 33}, AttentionShape{2, 77, 4, 44, 2},
                                  AttentionShape{1, 70, 2, 256}, AttentionShape{1, 70, 4, 100, 2},
                                  AttentionShape{3, 5, 2, 16}, AttentionShape{2, 1, 2, 8}}) {
    this->compare(s);
  }
}

TYPED_TEST(GpuAttention, WithoutABiasNothingIsAddedNorSummed) {
  const auto given = draw<TypeParam>(kKjv);
  const auto got = this->run(kKjv, given, false);
  expect_same_bits(got.qkv, given.qkv, "qkv");
  for (const float sum : got.dbias) EXPECT_TRUE(std::isnan(sum));
}

TYPED_TEST(GpuAttention, RepeatsBitForBit) {
  for (const AttentionShape& s :
       {kKjv, kLlama, kGpt2, AttentionShape{2, 77, 6, 64, 2}, AttentionShape{2, 100, 3, 33}}) {
    SCOPED_TRACE(name(s));
    const auto given = draw<TypeParam>(s);
    const auto first = this->run(s, given);
    for (int again = 0; again < 5; ++again) {
      const auto next = this->run(s, given);
      expect_same_bits(next.out, first.out, "out");
      expect_same_bits(next.lse, first.lse, "lse");
      expect_same_bits(next.dqkv, first.dqkv, "dqkv");
      expect_same_bits(next.dbias, first.dbias, "dbias");
    }
  }
}

TYPED_TEST(GpuAttention, ASamplesBitsDoNotDependOnTheBatchAroundIt) {
  using A = TypeParam;
  for (AttentionShape s :
       {kKjv, kLlama, AttentionShape{4, 77, 6, 64, 2}, AttentionShape{4, 100, 3, 33}}) {
    SCOPED_TRACE(name(s));
    const Given<A> given = draw<A>(s);
    const Attended<A> all = this->run(s, given);
    const auto part = [&](const auto& whole, int64_t sample) {
      const auto size = static_cast<int64_t>(whole.size()) / 4;
      return std::decay_t<decltype(whole)>(whole.begin() + sample * size,
                                           whole.begin() + (sample + 1) * size);
    };
    s.batch = 1;
    for (int64_t sample = 0; sample < 4; ++sample) {
      const Attended<A> one =
          this->run(s, {part(given.qkv, sample), part(given.dout, sample), given.bias});
      expect_same_bits(one.out, part(all.out, sample), fmt::format("out of sample {}", sample));
      expect_same_bits(one.lse, part(all.lse, sample), fmt::format("lse of sample {}", sample));
      expect_same_bits(one.dqkv, part(all.dqkv, sample), fmt::format("dqkv of sample {}", sample));
    }
  }
}

TYPED_TEST(GpuAttention, ACapturedCallHasTheBitsOfADirectOne) {
  using A = TypeParam;
  const AttentionShape& s = kLlama;
  const Given<A> given = draw<A>(s);
  const Attended<A> direct = this->run(s, given);
  Device& device = *this->device;
  const GpuArray<A> qkv(device, this->stream, given.qkv), dout(device, this->stream, given.dout);
  const GpuArray<A> out(device, this->stream, direct.out.size()),
      dqkv(device, this->stream, direct.dqkv.size());
  const GpuArray<float> bias(device, this->stream, given.bias),
      lse(device, this->stream, direct.lse.size());
  const GpuArray<float> dbias(device, this->stream, direct.dbias.size());
  device.begin_capture(this->stream);
  this->table.attention(qkv.data(), bias.data(), out.data(), lse.data(), nullptr, s);
  this->table.attention_backward(dout.data(), qkv.data(), out.data(), lse.data(), dqkv.data(),
                                 dbias.data(), nullptr, s);
  const CapturedStep step = device.end_capture(this->stream);
  device.launch(step, this->stream);
  expect_same_bits(out.get(), direct.out, "out");
  expect_same_bits(dqkv.get(), direct.dqkv, "dqkv");
  expect_same_bits(dbias.get(), direct.dbias, "dbias");
  device.destroy(step);
}

TYPED_TEST(GpuAttention, AHeadAboveItsLimitIsRefused) {
  EXPECT_THROW(this->table.attention(nullptr, nullptr, nullptr, nullptr, nullptr, {1, 8, 1, 257}),
               Error);
}

}  // namespace
}  // namespace tutti
