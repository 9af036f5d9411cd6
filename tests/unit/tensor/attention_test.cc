// Causal attention against ATen's explicit softmax in float64. Tolerance: scores are sums over up
// to 128 products, and a power of two passes their absolute error on as a relative one: 3e-6 of the
// largest value.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 3e-6;
class Attention : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, Attention, testing::ValuesIn(kCodePaths), isa_name);

struct Result {
  Floats qkv, out, lse, dqkv, dbias;
};

Result run(const Kernels& table, const AttentionShape& s, const Floats& qkv, const Floats& bias,
           const Floats& dout) {
  const int64_t rows = s.batch * s.length, width = s.heads * s.dim;
  Result r{qkv, Floats(rows * width, NAN), Floats(rows * s.heads, NAN), Floats(qkv.size(), NAN),
           Floats(s.columns(), NAN)};
  // One float off every border, and full of NaN: nothing may be read before it was written.
  Floats work(table.attention_work(s) + 1, NAN);
  table.attention(r.qkv.data(), bias.data(), r.out.data(), r.lse.data(), work.data() + 1, s);
  std::fill(work.begin(), work.end(), NAN);
  table.attention_backward(dout.data(), r.qkv.data(), r.out.data(), r.lse.data(), r.dqkv.data(),
                           r.dbias.data(), work.data() + 1, s);
  return r;
}

void compare(const Kernels& table, const AttentionShape& s) {
  const int64_t rows = s.batch * s.length, width = s.heads * s.dim;
  const Floats qkv = normals(rows * s.columns(), 1), bias = normals(s.columns(), 2, 0.3f);
  const Floats dout = normals(rows * width, 3);
  const Result got = run(table, s, qkv, bias, dout);
  const int64_t all = s.heads + 2 * s.kv_heads;
  const at::Tensor x = leaf(qkv, {s.batch, s.length, all, s.dim}), b = leaf(bias, {all, s.dim});
  const at::Tensor split = (x + b).transpose(1, 2);
  const at::Tensor q = split.narrow(1, 0, s.heads);
  const at::Tensor k = split.narrow(1, s.heads, s.kv_heads).repeat_interleave(s.group(), 1);
  const at::Tensor v =
      split.narrow(1, s.heads + s.kv_heads, s.kv_heads).repeat_interleave(s.group(), 1);
  const at::Tensor hidden = at::ones({s.length, s.length}, at::kBool).triu(1);
  const at::Tensor scores =
      (at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(s.dim)))
          .masked_fill(hidden, -INFINITY);
  const at::Tensor out = at::matmul(at::softmax(scores, -1), v).transpose(1, 2);
  const auto grads = torch::autograd::grad(
      {out}, {x, b}, {leaf(dout, {s.batch, s.length, s.heads, s.dim}).detach()});
  const std::string where = fmt::format("batch {} length {} heads {}/{} dim {}", s.batch, s.length,
                                        s.heads, s.kv_heads, s.dim);
  EXPECT_LT(distance(got.out, out), kTolerance) << where;
  EXPECT_LT(distance(got.lse, scores.logsumexp(-1) / std::log(2.0)), kTolerance) << where;
  EXPECT_LT(distance(got.dqkv, grads[0]), kTolerance) << where;
  EXPECT_LT(distance(got.dbias, grads[1]), 2 * kTolerance) << where;
}

TEST_P(Attention, AgreesWithAtenAtTheHotShapes) {
  compare(*table, {1, 256, 2, 64});
  compare(*table, {2, 128, 2, 32});
}

TEST_P(Attention, AgreesWithAtenAtEveryLengthUpTo40) {
  for (int64_t length = 1; length <= 40; ++length) compare(*table, {1, length, 2, 16});
}

TEST_P(Attention, AgreesWithAtenAtAnyHeadDim) {
  for (const int64_t dim : {1, 3, 7, 8, 16, 20, 31, 48, 64, 65, 80, 96, 112, 128, 130})
    compare(*table, {2, 21, 2, dim});
}

TEST_P(Attention, AgreesWithAtenAcrossBlocksOfQueries) {
  for (const int64_t length : {95, 96, 97, 193, 300}) compare(*table, {1, length, 1, 24});
}

TEST_P(Attention, AgreesWithAtenWhereHeadsShareKeysAndValues) {
  for (const int64_t length : {1, 7, 40, 97}) {
    compare(*table, {2, length, 6, 16, 2});
    compare(*table, {2, length, 4, 20, 1});
    compare(*table, {1, length, 3, 8, 3});
  }
}

TEST_P(Attention, WithoutABiasIsAsWithZeros) {
  const AttentionShape s{2, 19, 4, 10, 2};
  const Floats qkv = normals(2 * 19 * s.columns(), 1), dout = normals(2 * 19 * 40, 3);
  const Result zeros = run(*table, s, qkv, Floats(s.columns(), 0.0f), dout);
  Floats kept = qkv, out(dout.size()), lse(2 * 19 * 4), dqkv(qkv.size()),
         work(table->attention_work(s));
  table->attention(kept.data(), nullptr, out.data(), lse.data(), work.data(), s);
  table->attention_backward(dout.data(), kept.data(), out.data(), lse.data(), dqkv.data(), nullptr,
                            work.data(), s);
  EXPECT_TRUE(same_bits(out, zeros.out) && same_bits(dqkv, zeros.dqkv));
}

TEST_P(Attention, ASamplesBitsDependOnNoOtherSampleAndNoLaterToken) {
  const AttentionShape two{2, 70, 3, 20}, one{1, 70, 3, 20}, shorter{1, 41, 3, 20};
  const int64_t width = 60, sample = 70 * width;
  Floats qkv = normals(2 * 3 * sample, 1), bias = normals(3 * width, 2),
         dout = normals(2 * sample, 3);
  const Result both = run(*table, two, qkv, bias, dout);
  const Floats second(qkv.begin() + 3 * sample, qkv.end()),
      dsecond(dout.begin() + sample, dout.end());
  const Result alone = run(*table, one, second, bias, dsecond);
  EXPECT_TRUE(same_bits(alone.out.data(), both.out.data() + sample, sample));
  EXPECT_TRUE(same_bits(alone.dqkv.data(), both.dqkv.data() + 3 * sample, 3 * sample));
  const Floats cut(second.begin(), second.begin() + 41 * 3 * width),
      dcut(dsecond.begin(), dsecond.begin() + 41 * width);
  EXPECT_TRUE(
      same_bits(run(*table, shorter, cut, bias, dcut).out.data(), alone.out.data(), 41 * width));
  const Result again = run(*table, two, qkv, bias, dout);
  EXPECT_TRUE(same_bits(again.dqkv, both.dqkv) && same_bits(again.dbias, both.dbias));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  const AttentionShape s{1, 20, 1, 16};
  const Floats qkv = normals(20 * 48, 1, 60), bias(48, 0.0f), dout = normals(20 * 16, 3);
  const Result got = run(*table, s, qkv, bias, dout);
  for (const float v : got.dqkv) EXPECT_TRUE(std::isfinite(v));
}

TEST_P(Attention, NotANumberInAKeyReachesThatSamplesOutput) {
  const AttentionShape s{1, 8, 1, 16};
  Floats qkv = normals(8 * 48, 1);
  qkv[2 * 48 + 16] = NAN;  // a key of token 2: later tokens see it, earlier ones do not
  const Result got = run(*table, s, qkv, Floats(48, 0.0f), normals(8 * 16, 3));
  EXPECT_TRUE(std::isfinite(got.out[16]));
  EXPECT_TRUE(std::isnan(got.out[7 * 16]));
}

}  // namespace
}  // namespace tutti::test
