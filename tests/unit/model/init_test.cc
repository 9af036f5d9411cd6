#include "model/core/init.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_qr.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/philox.h"

namespace tutti {

namespace {

struct Moments {
  double mean = 0, deviation = 0, lowest = 0, highest = 0;
};

Moments moments(const std::vector<float>& values) {
  Moments m;
  for (float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (float v : values) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(m.deviation / static_cast<double>(values.size()));
  m.lowest = *std::min_element(values.begin(), values.end());
  m.highest = *std::max_element(values.begin(), values.end());
  return m;
}

std::vector<float> draw(Init init, std::vector<int64_t> dims = {200, 300},
                        const std::string& name = "a.weight", uint64_t seed = 1) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  std::vector<float> values(count, NAN);
  initialise({"weight", std::move(dims), init, {}}, name, seed, values);
  return values;
}

using Kind = Init::Kind;
constexpr Kind kAll[] = {
    Kind::kZeros,           Kind::kOnes,          Kind::kConstant,     Kind::kNormal,
    Kind::kTruncatedNormal, Kind::kGlorotUniform, Kind::kGlorotNormal, Kind::kHeUniform,
    Kind::kHeNormal,        Kind::kOrthogonal};

}  // namespace

TEST(Init, ConstantsAreThemselves) {
  for (float v : draw({Kind::kZeros, 7})) ASSERT_EQ(v, 0.0f);
  for (float v : draw({Kind::kOnes, 7})) ASSERT_EQ(v, 1.0f);
  for (float v : draw({Kind::kConstant, 0.25})) ASSERT_EQ(v, 0.25f);
}

// 60,000 draws: the mean of a unit normal is off by 0.004 at one standard error, its deviation by
// 0.003; bounds are five of them.
TEST(Init, NormalHasTheAskedDeviation) {
  const Moments m = moments(draw({Kind::kNormal, 0.02}));
  EXPECT_NEAR(m.mean, 0, 0.02 * 0.02);
  EXPECT_NEAR(m.deviation, 0.02, 0.02 * 0.015);
  EXPECT_GT(m.highest, 0.02 * 3);
}

TEST(Init, TruncatedNormalStaysWithinTwoDeviationsAndReachesThem) {
  const Moments m = moments(draw({Kind::kTruncatedNormal, 0.5}));
  EXPECT_NEAR(m.mean, 0, 0.01);
  EXPECT_NEAR(m.deviation, 0.5 * 0.8796, 0.01);  // of a normal cut at two deviations
  EXPECT_LE(m.highest, 1.0);
  EXPECT_GE(m.lowest, -1.0);
  EXPECT_GT(m.highest, 0.98);
  EXPECT_LT(m.lowest, -0.98);
}

TEST(Init, GlorotAndHeFollowTheFansOfOutIn) {
  const double glorot = std::sqrt(2.0 / (200 + 300)), he = std::sqrt(2.0 / 300);
  EXPECT_NEAR(moments(draw({Kind::kGlorotNormal, 1})).deviation, glorot, glorot * 0.015);
  EXPECT_NEAR(moments(draw({Kind::kHeNormal, 1})).deviation, he, he * 0.015);
  EXPECT_NEAR(moments(draw({Kind::kHeNormal, 3})).deviation, 3 * he, 3 * he * 0.015);
  for (auto [kind, deviation] : {std::pair{Kind::kGlorotUniform, glorot}, {Kind::kHeUniform, he}}) {
    const Moments m = moments(draw({kind, 1}));
    EXPECT_NEAR(m.deviation, deviation, deviation * 0.015);
    EXPECT_LE(m.highest, deviation * std::sqrt(3.0) * 1.000001);
    EXPECT_GE(m.lowest, -deviation * std::sqrt(3.0) * 1.000001);
    EXPECT_GT(m.highest, deviation * 1.7);
  }
}

TEST(Init, AConvolutionCountsItsKernelIntoTheFans) {
  const double he = std::sqrt(2.0 / (16 * 9)), glorot = std::sqrt(2.0 / (16 * 9 + 400 * 9));
  EXPECT_NEAR(moments(draw({Kind::kHeNormal, 1}, {400, 16, 3, 3})).deviation, he, he * 0.015);
  EXPECT_NEAR(moments(draw({Kind::kGlorotNormal, 1}, {400, 16, 3, 3})).deviation, glorot,
              glorot * 0.015);
}

TEST(Init, OrthogonalRowsOrColumnsAreOrthonormalTimesTheScale) {
  for (auto [rows, columns] :
       {std::pair<int64_t, int64_t>{40, 25}, {25, 40}, {30, 30}, {1, 7}, {7, 1}}) {
    const auto values = draw({Kind::kOrthogonal, 2}, {rows, columns});
    const at::Tensor m =
        at::from_blob(const_cast<float*>(values.data()), {rows, columns}).to(at::kDouble) / 2;
    const at::Tensor product = rows < columns ? m.mm(m.t()) : m.t().mm(m);
    // The values are rounded to float32.
    EXPECT_TRUE(at::allclose(product, at::eye(std::min(rows, columns), at::kDouble), 0, 1e-6))
        << rows << columns;
  }
  const auto kernel = draw({Kind::kOrthogonal, 1}, {8, 3, 3, 3}),
             matrix = draw({Kind::kOrthogonal, 1}, {8, 27});
  EXPECT_EQ(kernel, matrix) << "dims after the first are one";
}

TEST(Init, OrthogonalIsTheQOfTheKeyedNormalsWithAPositiveDiagonalOfR) {
  constexpr int64_t kRows = 24, kColumns = 10;
  at::Tensor normals = at::empty({kRows, kColumns}, at::kDouble);
  for (int64_t i = 0; i < kRows * kColumns; ++i)
    normals.data_ptr<double>()[i] = philox_normal({1, Purpose::kInit, hash64("a.weight"), 0}, i);
  const auto [q, r] = at::linalg_qr(normals);
  const auto values = draw({Kind::kOrthogonal, 1}, {kRows, kColumns});
  const at::Tensor mine =
      at::from_blob(const_cast<float*>(values.data()), {kRows, kColumns}).to(at::kDouble);
  EXPECT_TRUE(at::allclose(mine, q * r.diagonal().sign(), 0, 1e-6)) << "rounded to float32";
}

TEST(Init, GivenValuesAreTakenAsTheyAre) {
  const auto values =
      std::make_shared<const std::vector<float>>(std::vector<float>{1, -2, 3, 4, 5, 6});
  const Parameter parameter{"weight", {2, 3}, {Kind::kGiven, 7, values}, {}};
  std::vector<float> whole(6), part(3);
  initialise(parameter, "a.weight", 1, whole);
  EXPECT_EQ(whole, *values);
  initialise_range(parameter, "a.weight", 1, 2, part);
  EXPECT_EQ(part, (std::vector<float>{3, 4, 5}));
}

TEST(Init, EveryNameOfTheJobIsAKind) {
  ModelConfig config{};
  config.init_scale = 0.3;
  for (const auto& [name, kind, scale] : {std::tuple{"normal", Kind::kNormal, 0.3},
                                          {"truncated-normal", Kind::kTruncatedNormal, 0.3},
                                          {"glorot-uniform", Kind::kGlorotUniform, 1.0},
                                          {"glorot-normal", Kind::kGlorotNormal, 1.0},
                                          {"he-uniform", Kind::kHeUniform, 1.0},
                                          {"he-normal", Kind::kHeNormal, 1.0},
                                          {"orthogonal", Kind::kOrthogonal, 1.0},
                                          {"zeros", Kind::kZeros, 1.0},
                                          {"ones", Kind::kOnes, 1.0},
                                          {"constant", Kind::kConstant, 0.3}}) {
    config.init = value_named<InitKind>(name).value();
    EXPECT_EQ(init_of(config).kind, kind) << name;
    EXPECT_EQ(init_of(config).scale, scale) << name;
  }
}

TEST(Init, ValuesDoNotDependOnHowAParameterIsCut) {
  for (Kind kind : kAll) {
    const Parameter parameter{"weight", {40, 25}, {kind, 0.3, {}}, {}};
    const std::vector<float> whole = draw(parameter.init, parameter.dims);
    std::vector<float> pieces(whole.size());
    int64_t first = 0;
    for (int64_t size : {1, 2, 3, 61, 400, 533}) {
      initialise_range(parameter, "a.weight", 1, first, std::span(pieces).subspan(first, size));
      first += size;
    }
    ASSERT_EQ(first, 1000);
    EXPECT_EQ(pieces, whole) << "kind " << static_cast<int>(kind);
  }
}

TEST(Init, SeedAndFullNameChangeEveryDrawnValue) {
  for (Kind kind : kAll) {
    if (kind == Kind::kZeros || kind == Kind::kOnes || kind == Kind::kConstant) continue;
    const auto one = draw({kind, 1}), other_seed = draw({kind, 1}, {200, 300}, "a.weight", 2),
               other_name = draw({kind, 1}, {200, 300}, "b.weight");
    EXPECT_EQ(one, draw({kind, 1}));
    int64_t equal = 0;
    for (size_t i = 0; i < one.size(); ++i)
      equal += (one[i] == other_seed[i]) + (one[i] == other_name[i]);
    EXPECT_LT(equal, 10) << "kind " << static_cast<int>(kind);
  }
}

}  // namespace tutti
