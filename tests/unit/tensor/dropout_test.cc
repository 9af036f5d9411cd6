// Keyed dropout and what it is fused with: masks are compared with the scalar Philox of base, word
// by word.
#include <algorithm>

#include "kernel_case.h"

namespace tutti::test {
namespace {

class DropoutKernel : public EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, DropoutKernel, testing::ValuesIn(kCodePaths), isa_name);

constexpr Dropout kDropout{.rate = 0.3,
                           .seed = 11,
                           .step = 5,
                           .block = 3,
                           .site = 1,
                           .first_sample = 1000,
                           .rows_per_sample = 4};

float factor(const Dropout& d, int64_t row, int64_t col, int64_t cols) {
  const auto sample = static_cast<uint64_t>(d.first_sample + row / d.rows_per_sample);
  const PhiloxKey key{d.seed, Purpose::kDropout, d.step,
                      uint64_t{d.block} << 44 | uint64_t{d.site} << 40 | sample};
  const int64_t groups = (cols + 63) / 64;
  const auto words = philox(
      key, static_cast<uint64_t>(16 * (row % d.rows_per_sample * groups + col / 64) + col % 16));
  return words[col % 64 / 16] >= static_cast<uint32_t>(d.rate * 0x1p32)
             ? static_cast<float>(1 / (1 - d.rate))
             : 0;
}

TEST_P(DropoutKernel, ResidualAndItsGradientUseTheKeyedMask) {
  for (const int64_t cols : {1, 16, 33, 64, 100, 192}) {
    const int64_t rows = 12;
    const Floats y = normals(rows * cols, 1), bias = normals(cols, 2), x = normals(rows * cols, 3);
    Floats out(y.size()), dout(y.size()), sums(cols, 4.0f);
    table->bias_residual(y.data(), bias.data(), x.data(), out.data(), rows, cols, &kDropout);
    table->dropout_backward(y.data(), dout.data(), sums.data(), rows, cols, &kDropout);
    Floats want_sums(cols, 0.0f);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float f = factor(kDropout, i / cols, i % cols, cols);
      EXPECT_EQ(out[i], std::fma(y[i] + bias[i % cols], f, x[i])) << i << " of " << cols;
      EXPECT_EQ(dout[i], y[i] * f);
      want_sums[i % cols] += y[i] * f;
    }
    EXPECT_TRUE(same_bits(sums, want_sums));
  }
}

TEST_P(DropoutKernel, SomeColumnsDrawWhatTheWholeDrawsThere) {
  const int64_t rows = 12, all = 200;
  const Floats whole = normals(rows * all, 1);
  for (const int64_t cols : {1, 7, 16, 50, 64, 100}) {
    for (const int64_t first : {0, 1, 50, 63, 64, 100}) {
      Dropout part = kDropout;
      part.first_column = first;
      part.all_columns = all;
      Floats x(rows * cols), got(x.size()), sums(cols);
      for (int64_t i = 0; i < rows * cols; ++i) x[i] = whole[i / cols * all + first + i % cols];
      table->dropout_backward(x.data(), got.data(), sums.data(), rows, cols, &part);
      for (int64_t i = 0; i < rows * cols; ++i)
        ASSERT_EQ(got[i], x[i] * factor(kDropout, i / cols, first + i % cols, all))
            << i << " of " << cols << " columns from " << first;
    }
  }
}

TEST_P(DropoutKernel, AMaskDoesNotDependOnHowSamplesAreCut) {
  const int64_t rows = 12, cols = 70;
  const Floats y = normals(rows * cols, 1), bias(cols, 0.0f), x(y.size(), 0.0f);
  Floats whole(y.size()), parts(y.size());
  table->bias_residual(y.data(), bias.data(), x.data(), whole.data(), rows, cols, &kDropout);
  for (int64_t s = 0; s < 3; ++s) {
    Dropout one = kDropout;
    one.first_sample += s;
    const int64_t at = s * 4 * cols;
    table->bias_residual(y.data() + at, bias.data(), x.data() + at, parts.data() + at, 4, cols,
                         &one);
  }
  EXPECT_TRUE(same_bits(whole, parts));
}

TEST_P(DropoutKernel, EveryFieldOfTheKeyChangesTheMaskAndTheRateIsKept) {
  const int64_t rows = 64, cols = 256;
  const Floats y(rows * cols, 1.0f), zeros(y.size(), 0.0f);
  const auto drawn = [&](Dropout d) {
    Floats out(y.size());
    table->bias_residual(y.data(), zeros.data(), zeros.data(), out.data(), rows, cols, &d);
    return out;
  };
  const Floats base = drawn(kDropout);
  const auto kept =
      static_cast<double>(std::count_if(base.begin(), base.end(), [](float v) { return v != 0; }));
  // 16384 draws: a deviation of 0.0036
  EXPECT_NEAR(kept / static_cast<double>(base.size()), 0.7, 0.02);
  for (int field = 0; field < 5; ++field) {
    Dropout d = kDropout;
    if (field == 0) d.seed += 1;
    if (field == 1) d.step += 1;
    if (field == 2) d.block += 1;
    if (field == 3) d.site += 1;
    if (field == 4) d.first_sample += 100;
    EXPECT_FALSE(same_bits(base, drawn(d))) << field;
  }
}

TEST_P(DropoutKernel, WithoutDropoutTheResidualIsPlain) {
  const int64_t rows = 3, cols = 21;
  const Floats y = normals(rows * cols, 1), bias = normals(cols, 2), x = normals(rows * cols, 3);
  Floats out = y, sums(cols);
  table->bias_residual(out.data(), bias.data(), x.data(), out.data(), rows, cols, nullptr);
  for (int64_t i = 0; i < rows * cols; ++i) EXPECT_EQ(out[i], x[i] + (y[i] + bias[i % cols]));
  table->dropout_backward(y.data(), nullptr, sums.data(), rows, cols, nullptr);
  for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(sums[c], y[c] + y[cols + c] + y[2 * cols + c]);
}

TEST_P(DropoutKernel, EmbeddingGathersAndScattersInTokenOrder) {
  const int64_t length = 5, rows = 10, vocab = 7, cols = 19;
  const std::vector<int64_t> tokens{3, 3, 0, 6, 1, 3, 2, 0, 0, 5};
  const Floats token = normals(vocab * cols, 1), position = normals(length * cols, 2),
               dout = normals(rows * cols, 3);
  for (const bool masked : {false, true}) {
    const Dropout* dropout = masked ? &kDropout : nullptr;
    Dropout key = kDropout;
    key.rows_per_sample = length;
    if (masked) dropout = &key;
    Floats out(rows * cols), dtoken(vocab * cols, 8.0f), dposition(length * cols, 8.0f);
    Floats want_token(vocab * cols, 0.0f), want_position(length * cols, 0.0f);
    table->embed(tokens.data(), token.data(), position.data(), out.data(), rows, length, cols,
                 dropout);
    table->embed_backward(tokens.data(), dout.data(), dtoken.data(), dposition.data(), rows, length,
                          vocab, cols, dropout);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const int64_t r = i / cols, c = i % cols;
      const float f = masked ? factor(key, r, c, cols) : 1;
      EXPECT_EQ(out[i], (token[tokens[r] * cols + c] + position[r % length * cols + c]) * f);
      want_token[tokens[r] * cols + c] += dout[i] * f;
      want_position[r % length * cols + c] += dout[i] * f;
    }
    EXPECT_TRUE(same_bits(dtoken, want_token));
    EXPECT_TRUE(same_bits(dposition, want_position));
  }
}

TEST_P(DropoutKernel, WithoutBiasPositionsOrSumsIsAsWithZeros) {
  const int64_t rows = 12, cols = 70, vocab = 5;
  const Floats y = normals(rows * cols, 1), x = normals(rows * cols, 2),
               token = normals(vocab * cols, 3);
  const Floats zeros(rows * cols, 0.0f);
  std::vector<int64_t> tokens(rows);
  for (int64_t r = 0; r < rows; ++r) tokens[r] = r * 3 % vocab;
  for (const Dropout* dropout : {static_cast<const Dropout*>(nullptr), &kDropout}) {
    const auto all = [&](const float* none, bool sums) {
      Floats residual(y.size()), dy(y.size()), embedded(y.size()), dtoken(token.size()),
          extra(rows * cols);
      table->bias_residual(y.data(), none, x.data(), residual.data(), rows, cols, dropout);
      table->dropout_backward(y.data(), dy.data(), sums ? extra.data() : nullptr, rows, cols,
                              dropout);
      table->embed(tokens.data(), token.data(), none, embedded.data(), rows, 4, cols, dropout);
      table->embed_backward(tokens.data(), y.data(), dtoken.data(), sums ? extra.data() : nullptr,
                            rows, 4, vocab, cols, dropout);
      for (const Floats* more : {&dy, &embedded, &dtoken})
        residual.insert(residual.end(), more->begin(), more->end());
      return residual;
    };
    EXPECT_TRUE(same_bits(all(nullptr, false), all(zeros.data(), true)));
  }
}

}  // namespace
}  // namespace tutti::test
