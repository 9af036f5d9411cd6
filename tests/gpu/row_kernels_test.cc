// The GPU's elementwise and row-wise kernels against the CPU's, each also repeated, on unaligned
// arrays (where other code runs) and on the first of its rows alone: equal bits. Tolerances are
// fractions of the largest value: sums over thousands of float32 values in another order 2e-5, a
// row's sums and functions 4e-6; the hardware's exponential and division of the 16-bit types 2e-5;
// a derivative at an argument that was rounded to A 4 roundings.
#include "gpu/row_side.h"

namespace tutti {
namespace {

constexpr double kSums = 2e-5, kRow = 4e-6, kFunction = 2e-5;

struct Size {
  int64_t rows, cols;
};
// float rows of 4100 and more and 16-bit rows of 8200 and more are too long for a thread's
// registers.
const std::vector<Size> kSizes{{1, 1},      {300, 37},   {4096, 37},  {7, 192},
                               {1, 768},    {4096, 768}, {300, 1000}, {7, 3072},
                               {300, 3072}, {33, 4100},  {9, 8200},   {5, 12288}};

template <class A>
class GpuRows : public RowTest<A> {};
TYPED_TEST_SUITE(GpuRows, Activations);

std::string name(const char* what, const Size& size) {
  return fmt::format("{} {} x {}", what, size.rows, size.cols);
}

TYPED_TEST(GpuRows, LayerNormAndItsGradient) {
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats x = this->values(rows * cols), gamma = this->values(cols),
                 beta = this->values(cols), dy = this->values(rows * cols),
                 residual = this->values(rows * cols);
    const auto op = [&](auto& side, int64_t some) {
      const auto n = some * cols;
      const auto* const in = side.array({x.begin(), x.begin() + n});
      const auto* const d = side.array({dy.begin(), dy.begin() + n});
      const float* const g = side.floats(gamma);
      auto* const y = side.result(n);
      float *const mean = side.float_result(some), *const rstd = side.float_result(some);
      auto* const dx = side.array({residual.begin(), residual.begin() + n}, true);
      side.table.layer_norm(in, g, side.floats(beta), y, mean, rstd, some, cols, 1e-5f);
      side.table.layer_norm_backward(d, in, mean, rstd, g, dx, dx, side.float_result(cols),
                                     side.float_result(cols), some, cols);
    };
    this->compare(name("layer_norm", size), {kRow, kRow, kRow, kRow, kSums, kSums},
                  [&, rows = rows](auto& side) { op(side, rows); });
    if (rows > 1) this->compare_rows(name("layer_norm", size), rows, rows / 2, op);
  }
}

TYPED_TEST(GpuRows, LayerNormWithoutBetaOrResidualInPlace) {
  for (const Size& size : {Size{300, 768}, Size{7, 37}, Size{5, 12288}}) {
    const auto [rows, cols] = size;
    const Floats x = this->values(rows * cols), gamma = this->values(cols),
                 dy = this->values(rows * cols);
    this->compare(name("layer_norm", size), {kRow, kRow, kRow, kRow, kSums},
                  [&, rows = rows, cols = cols](auto& side) {
                    const auto* const in = side.array(x);
                    const float* const g = side.floats(gamma);
                    auto* const y = side.result(rows * cols);
                    float *const mean = side.float_result(rows), *const rstd =
                                                                     side.float_result(rows);
                    auto* const dx = side.array(dy, true);
                    side.table.layer_norm(in, g, nullptr, y, mean, rstd, rows, cols, 1e-5f);
                    side.table.layer_norm_backward(dx, in, mean, rstd, g, nullptr, dx,
                                                   side.float_result(cols), nullptr, rows, cols);
                  });
  }
}

TYPED_TEST(GpuRows, RmsNormAndItsGradient) {
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats x = this->values(rows * cols), gamma = this->values(cols),
                 dy = this->values(rows * cols), residual = this->values(rows * cols);
    this->compare(name("rms_norm", size), {kRow, kRow, kRow, kSums},
                  [&, rows = rows, cols = cols](auto& side) {
                    const auto* const in = side.array(x);
                    const float* const g = side.floats(gamma);
                    auto* const y = side.result(rows * cols);
                    float* const rstd = side.float_result(rows);
                    auto* const dx = side.result(rows * cols);
                    side.table.rms_norm(in, g, y, rstd, rows, cols, 1e-5f);
                    side.table.rms_norm_backward(side.array(dy), in, rstd, g, side.array(residual),
                                                 dx, side.float_result(cols), rows, cols);
                  });
  }
}

TYPED_TEST(GpuRows, BiasAndColumnSums) {
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats y = this->values(rows * cols), bias = this->values(cols);
    this->compare(name("add_bias, column_sums", size), {kExact, kSums},
                  [&, rows = rows, cols = cols](auto& side) {
                    side.table.add_bias(side.array(y, true), side.floats(bias), rows, cols);
                    side.table.column_sums(side.array(y), side.float_result(cols), rows, cols);
                  });
  }
}

Dropout some_dropout(int64_t rows_per_sample) {
  return {.rate = 0.3,
          .seed = 11,
          .step = 5,
          .block = 3,
          .site = 1,
          .first_sample = 1000,
          .rows_per_sample = rows_per_sample};
}

TYPED_TEST(GpuRows, ResidualAndDropoutHaveTheMasksOfTheCpu) {
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats y = this->values(rows * cols), bias = this->values(cols),
                 x = this->values(rows * cols);
    for (const int64_t rows_per_sample : {int64_t{0}, int64_t{1}, int64_t{5}, rows}) {
      const Dropout dropout = some_dropout(rows_per_sample);
      const Dropout* const given = rows_per_sample == 0 ? nullptr : &dropout;
      const auto op = [&, cols = cols](auto& side, int64_t some) {
        const auto n = some * cols;
        const auto* const in = side.array({y.begin(), y.begin() + n});
        auto* const out = side.array({x.begin(), x.begin() + n}, true);
        auto* const d = given == nullptr ? nullptr : side.result(n);
        side.table.bias_residual(in, side.floats(bias), out, out, some, cols, given);
        side.table.dropout_backward(in, d, side.float_result(cols), some, cols, given);
      };
      std::vector<double> tolerances{kExact, kExact, kSums};
      if (given == nullptr) tolerances = {kExact, kSums};
      this->compare(fmt::format("{}, {} rows per sample", name("dropout", size), rows_per_sample),
                    tolerances, [&, rows = rows](auto& side) { op(side, rows); });
      if (rows > 1) this->compare_rows(name("dropout", size), rows, rows / 2, op);
    }
  }
}

TYPED_TEST(GpuRows, KeysInTheDevicesMemoryCountAsThoseOfTheCall) {
  const int64_t rows = 40, cols = 192;
  const Floats ones(rows * cols, 1.0f);
  const auto drawn = [&](const Dropout& dropout) {
    return this
        ->on_gpu([&](auto& side) {
          side.table.dropout_backward(side.array(ones), side.result(rows * cols), nullptr, rows,
                                      cols, &dropout);
        })[0]
        .values;
  };
  Dropout plain = some_dropout(4);
  const GpuArray<StepKeys> keys(*this->device, this->stream,
                                std::vector<StepKeys>{{.step = 77, .first_sample = 5000}});
  Dropout keyed = plain;
  keyed.keys = keys.data();
  keyed.first_sample = 8;
  plain.step = 77;
  plain.first_sample = 5008;
  expect_same_bits(drawn(keyed), drawn(plain), "keyed masks");
  plain.step = 78;
  EXPECT_NE(first_difference(drawn(keyed), drawn(plain)), -1);
}

TYPED_TEST(GpuRows, ActivationsAndTheirGradients) {
  using A = TypeParam;
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats h = this->values(rows * cols, 3), bias = this->values(cols),
                 dg = this->values(rows * cols);
    for (const Activation kind :
         {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu,
          Activation::kTanh, Activation::kSigmoid, Activation::kLeakyRelu, Activation::kElu}) {
      for (const bool biased : {true, false}) {
        if (!biased && rows * cols > 100000) continue;
        const auto op = [&, cols = cols](auto& side, int64_t some) {
          const auto n = some * cols;
          auto* const left = side.array({h.begin(), h.begin() + n}, true);
          auto* const dh = side.array({dg.begin(), dg.begin() + n}, true);
          side.table.bias_activation(left, biased ? side.floats(bias) : nullptr, side.result(n),
                                     some, cols, kind);
          side.table.activation_backward(dh, left, dh, side.float_result(cols), some, cols, kind);
        };
        const double derivative = kFunction + 4 * kRounding<A>;
        this->compare(fmt::format("{} kind {}", name("activation", size), static_cast<int>(kind)),
                      {kNotCompared, derivative, kFunction, derivative + kSums},
                      [&, rows = rows](auto& side) { op(side, rows); });
        if (rows > 1) this->compare_rows(name("activation", size), rows, rows / 2, op);
      }
    }
  }
}

TYPED_TEST(GpuRows, SwigluAndItsGradient) {
  using A = TypeParam;
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const Floats h = this->values(2 * rows * cols, 2), bias = this->values(2 * cols),
                 dg = this->values(rows * cols);
    for (const bool biased : {true, false}) {
      const double derivative = kFunction + 4 * kRounding<A>;
      this->compare(name("swiglu", size), {derivative, kFunction, derivative + kSums},
                    [&, rows = rows, cols = cols](auto& side) {
                      auto* const left = side.array(h, true);
                      side.table.bias_swiglu(left, biased ? side.floats(bias) : nullptr,
                                             side.result(rows * cols), rows, cols);
                      side.table.swiglu_backward(side.array(dg), left, left,
                                                 side.float_result(2 * cols), rows, cols);
                    });
    }
  }
}

TYPED_TEST(GpuRows, RotaryPositionsAndTheirGradients) {
  for (const RotaryShape& shape :
       {RotaryShape{2, 5, 2, 2, 7}, RotaryShape{3, 100, 4, 64, 320}, RotaryShape{2, 33, 3, 34, 110},
        RotaryShape{2, 700, 24, 64, 2304}}) {
    const int64_t n = shape.batch * shape.length * shape.columns;
    const Floats x = this->values(n), bias = this->values(shape.columns), d = this->values(n);
    const Floats table = rotary_table(shape.length, shape.dim, 10000);
    for (const bool biased : {true, false}) {
      this->compare(fmt::format("rotary of {} x {}", shape.batch * shape.length, shape.columns),
                    {kExact, kExact, kSums}, [&](auto& side) {
                      const float* const angles = side.floats(table);
                      side.table.rotary(side.array(x, true), biased ? side.floats(bias) : nullptr,
                                        angles, shape);
                      auto* const dx = side.array(d, true);
                      side.table.rotary_backward(dx, angles, side.float_result(shape.columns),
                                                 shape);
                    });
    }
  }
}

TYPED_TEST(GpuRows, EmbeddingAndItsGradient) {
  const int64_t vocab = 997;
  for (const Size& size : kSizes) {
    const auto [rows, cols] = size;
    const int64_t length = rows > 100 ? 100 : 2;
    std::vector<int64_t> tokens;
    // a third of the rows have one token, many tokens have no row
    for (int64_t r = 0; r < rows; ++r) {
      tokens.push_back(r % 3 == 0 ? 5 : static_cast<int64_t>(this->random() % vocab));
    }
    const Floats token = this->values(vocab * cols), position = this->values(length * cols),
                 dout = this->values(rows * cols);
    for (const bool masked : {false, true}) {
      const Dropout dropout = some_dropout(length);
      const Dropout* const given = masked ? &dropout : nullptr;
      this->compare(fmt::format("{}{}", name("embed", size), masked ? ", masked" : ""),
                    {kExact, kSums, kSums}, [&, rows = rows, cols = cols](auto& side) {
                      const int64_t* const ids = side.ids(tokens);
                      side.table.embed(ids, side.floats(token), side.floats(position),
                                       side.result(rows * cols), rows, length, cols, given);
                      float* const dtoken = side.float_result(vocab * cols);
                      side.table.embed_backward(ids, side.array(dout), dtoken,
                                                side.float_result(length * cols), rows, length,
                                                vocab, cols, given);
                    });
    }
  }
}

TYPED_TEST(GpuRows, NanAndInfinityAreNotLost) {
  const int64_t rows = 40, cols = 192;
  for (const float bad : {static_cast<float>(NAN), INFINITY}) {
    Floats x = this->values(rows * cols);
    const int64_t row = 17, column = 100;
    x[row * cols + column] = bad;
    const Floats gamma(cols, 1.0f), d(rows * cols, 1.0f);
    const auto all = this->on_gpu([&](auto& side) {
      const auto* const in = side.array(x);
      const float* const ones = side.floats(gamma);
      float *const mean = side.float_result(rows), *const rstd = side.float_result(rows);
      side.table.layer_norm(in, ones, ones, side.result(rows * cols), mean, rstd, rows, cols,
                            1e-5f);
      side.table.layer_norm_backward(side.array(d), in, mean, rstd, ones, nullptr,
                                     side.result(rows * cols), side.float_result(cols),
                                     side.float_result(cols), rows, cols);
      side.table.column_sums(in, side.float_result(cols), rows, cols);
      side.table.bias_activation(side.array(x), ones, side.result(rows * cols), rows, cols,
                                 Activation::kGeluTanh);
      side.table.bias_residual(in, ones, side.array(d), side.result(rows * cols), rows, cols,
                               nullptr);
    });
    const auto lost = [](float v) { return std::isfinite(v); };
    EXPECT_FALSE(lost(all[0].values[row]) && lost(all[1].values[row])) << "mean and rstd";
    EXPECT_FALSE(lost(all[2].values[row * cols + column])) << "layer_norm";
    EXPECT_FALSE(lost(all[3].values[row * cols + column])) << "layer_norm_backward";
    EXPECT_FALSE(lost(all[4].values[column])) << "dgamma";
    EXPECT_FALSE(lost(all[6].values[column])) << "column_sums";
    EXPECT_FALSE(lost(all[7].values[row * cols + column])) << "bias_activation";
    EXPECT_FALSE(lost(all[8].values[row * cols + column])) << "bias_residual";
    EXPECT_TRUE(std::isfinite(all[6].values[column + 1])) << "a column sum next to it";
    EXPECT_TRUE(std::isfinite(all[2].values[(row + 1) * cols + column])) << "a row next to it";
  }
}

TYPED_TEST(GpuRows, NoRowsGiveSumsOfZero) {
  const int64_t cols = 192;
  const auto all = this->on_gpu([&](auto& side) {
    const auto* const none = side.array(Floats(1));
    side.table.column_sums(none, side.float_result(cols), 0, cols);
    side.table.layer_norm_backward(none, none, side.floats(Floats(1)), side.floats(Floats(1)),
                                   side.floats(Floats(cols)), nullptr, side.array(Floats(1)),
                                   side.float_result(cols), side.float_result(cols), 0, cols);
  });
  for (const Result& sums : all) expect_same_bits(sums.values, Floats(cols, 0.0f), "sums");
}

}  // namespace
}  // namespace tutti
