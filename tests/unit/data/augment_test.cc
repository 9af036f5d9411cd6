// What training does to images: every change by itself, then all of them together, which must
// depend on a sample's position alone.
#include "data/images/augment.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "base/fp_mode.h"
#include "base/processor.h"
#include "data/images/augment_kernels.h"

namespace tutti {
namespace {

constexpr uint64_t kSeed = 21;

/// [rows, channels, height, width] of distinct values that are not zero.
at::Tensor pictures(int64_t rows, int64_t channels, int64_t height, int64_t width) {
  const int64_t n = rows * channels * height * width;
  return at::arange(1, n + 1, at::kFloat)
      .div_(static_cast<double>(n))
      .reshape({rows, channels, height, width});
}

at::Tensor applied(const AugmentConfig& config, const at::Tensor& images, int64_t first = 0,
                   uint64_t seed = kSeed) {
  const at::Tensor copy = images.clone();
  Augment(config, {images.size(1), images.size(2), images.size(3)}, seed)
      .apply(std::vector<at::Tensor>{copy}, first);
  return copy;
}

/// `image` [C, H, W] moved, zeros where nothing was.
at::Tensor moved(const at::Tensor& image, int64_t down, int64_t right) {
  at::Tensor out = at::zeros_like(image);
  for (int64_t c = 0; c < image.size(0); ++c) {
    for (int64_t y = 0; y < image.size(1); ++y) {
      for (int64_t x = 0; x < image.size(2); ++x) {
        const int64_t to_y = y + down, to_x = x + right;
        if (to_y >= 0 && to_y < image.size(1) && to_x >= 0 && to_x < image.size(2))
          out[c][to_y][to_x] = image[c][y][x];
      }
    }
  }
  return out;
}

TEST(Augment, LeavesImagesAloneWhenAllIsOff) {
  const at::Tensor images = pictures(3, 2, 4, 5);
  EXPECT_TRUE(at::equal(applied({}, images), images));
}

TEST(Augment, CropShowsEveryMoveUpToItsPixelsAndZerosWhereNothingWas) {
  AugmentConfig config{};
  config.crop = 2;
  const at::Tensor images = pictures(400, 2, 4, 5);
  const at::Tensor got = applied(config, images);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t row = 0; row < 400; ++row) {
    int matches = 0;
    for (int64_t down = -2; down <= 2; ++down) {
      for (int64_t right = -2; right <= 2; ++right) {
        if (!at::equal(got[row], moved(images[row], down, right))) continue;
        seen.insert({down, right});
        ++matches;
      }
    }
    ASSERT_EQ(matches, 1) << row;
  }
  EXPECT_EQ(seen.size(), 25u);  // 400 draws miss one of 25 with a chance of 2e-6
}

TEST(Augment, AMoveLargerThanTheImageLeavesZeros) {
  std::vector<float> image = {1, 2, 3, 4, 5, 6}, scratch(6);
  isa_portable::move(image.data(), {1, 2, 3}, 0, 4, false, scratch.data());
  EXPECT_EQ(image, std::vector<float>(6));
  image = {1, 2, 3, 4, 5, 6};
  isa_portable::move(image.data(), {1, 2, 3}, -2, 0, true, scratch.data());
  EXPECT_EQ(image, std::vector<float>(6));
}

TEST(Augment, FlipExchangesLeftAndRightOfAboutItsShareOfTheImages) {
  AugmentConfig config{};
  config.flip = 0.3;
  const at::Tensor images = pictures(1000, 2, 3, 5);
  const at::Tensor got = applied(config, images);
  int flipped = 0;
  for (int64_t row = 0; row < 1000; ++row) {
    const bool same = at::equal(got[row], images[row]);
    ASSERT_TRUE(same || at::equal(got[row], images[row].flip({2})));
    flipped += same ? 0 : 1;
  }
  EXPECT_NEAR(flipped, 300, 5 * std::sqrt(210.0));  // five standard deviations
  config.flip = 1;
  EXPECT_TRUE(at::equal(applied(config, images), images.flip({3})));
  EXPECT_TRUE(at::equal(applied(config, applied(config, images)), images));
}

TEST(Augment, CropComesBeforeTheFlip) {
  AugmentConfig crop{}, both{};
  crop.crop = both.crop = 3;
  both.flip = 1;
  const at::Tensor images = pictures(50, 1, 6, 7);
  EXPECT_TRUE(at::equal(applied(both, images), applied(crop, images).flip({3})));
}

TEST(Augment, ATurnIsTheBilinearSampleOfATurnedGrid) {
  // The same coordinates by way of grid_sampler's [-1, 1]; rounding of the coordinates, at most
  // 2^-19 of a pixel, times the steepest difference of neighbours gives the tolerance.
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{8, 8}, {9, 13}, {5, 2}, {1, 1}}) {
    const at::Tensor image = pictures(1, 3, height, width).contiguous();
    for (const double degrees : {0.0, 90.0, -90.0, 180.0, 17.0, -133.0}) {
      for (const double zoom : {1.0, 0.5, 1.7}) {
        const double angle = degrees * std::numbers::pi / 180;
        const Rotation by{static_cast<float>(std::cos(angle) / zoom),
                          static_cast<float>(std::sin(angle) / zoom)};
        at::Tensor grid = at::zeros({1, height, width, 2});
        for (int64_t y = 0; y < height; ++y) {
          for (int64_t x = 0; x < width; ++x) {
            const double dx = static_cast<double>(x) - static_cast<double>(width - 1) / 2;
            const double dy = static_cast<double>(y) - static_cast<double>(height - 1) / 2;
            grid[0][y][x][0] = (by.along * dx + by.across * dy) * 2 / static_cast<double>(width);
            grid[0][y][x][1] = (by.along * dy - by.across * dx) * 2 / static_cast<double>(height);
          }
        }
        const at::Tensor expected = at::grid_sampler(image, grid, 0, 0, false);
        for (const CodePath path : runnable_paths()) {
          static constexpr decltype(&isa_portable::turn) kTurn[] = TUTTI_TABLE_OF(turn);
          const ImageShape shape{3, height, width};
          const at::Tensor got = image.clone();
          std::vector<float> scratch(static_cast<size_t>(turn_scratch(shape)));
          on_path(kTurn, path)(got.mutable_data_ptr<float>(), shape, by, scratch.data());
          EXPECT_LT((got - expected).abs().max().item<float>(), 1e-5)
              << height << "x" << width << " by " << degrees << " zoom " << zoom;
        }
      }
    }
  }
}

TEST(Augment, AQuarterTurnMovesWholePixels) {
  std::vector<float> image = {1, 2, 3, 4}, scratch(25);
  isa_portable::turn(image.data(), {1, 2, 2}, {0, 1}, scratch.data());
  EXPECT_EQ(image, (std::vector<float>{3, 1, 4, 2}));
}

TEST(Augment, RotationAndScalingStayWithinTheirRangesBothWays) {
  // Two bright pixels tell angle and zoom: their distance and direction from the centre.
  AugmentConfig config{};
  config.rotate = 30;
  config.scale = 0.2;
  const int64_t side = 65;
  at::Tensor images = at::zeros({300, 1, side, side});
  for (int64_t y = 30; y <= 34; ++y) {
    // a spot 20 to the right
    for (int64_t x = 50; x <= 54; ++x) images.select(2, y).select(2, x).fill_(1);
  }
  const at::Tensor got = applied(config, images);
  double least = 99, most = -99, nearest = 99, farthest = 0;
  for (int64_t row = 0; row < 300; ++row) {
    const auto* p = got[row].const_data_ptr<float>();
    double mass = 0, x_mass = 0, y_mass = 0;
    for (int64_t i = 0; i < side * side; ++i) {
      mass += p[i];
      const int64_t row_of = i / side, column = i % side;
      x_mass += p[i] * static_cast<double>(column - 32);
      y_mass += p[i] * static_cast<double>(row_of - 32);
    }
    const double x = x_mass / mass, y = y_mass / mass;
    const double degrees = std::atan2(y, x) * 180 / std::numbers::pi, distance = std::hypot(x, y);
    least = std::min(least, degrees);
    most = std::max(most, degrees);
    nearest = std::min(nearest, distance);
    farthest = std::max(farthest, distance);
  }
  EXPECT_GT(least, -30.5);
  EXPECT_LT(least, -28);
  EXPECT_LT(most, 30.5);
  EXPECT_GT(most, 28);
  EXPECT_GT(nearest, 20 * 0.8 - 0.2);
  EXPECT_LT(nearest, 20 * 0.82);
  EXPECT_LT(farthest, 20 * 1.2 + 0.2);
  EXPECT_GT(farthest, 20 * 1.18);
}

TEST(Augment, BrightnessMultipliesEachChannelByItsOwnFactor) {
  AugmentConfig config{};
  config.brightness = 0.4;
  const at::Tensor images = at::ones({500, 5, 3, 3});
  const at::Tensor got = applied(config, images);
  const at::Tensor factors = got.select(3, 0).select(2, 0);
  EXPECT_TRUE(at::equal(got, factors.reshape({500, 5, 1, 1}).expand_as(got).contiguous()));
  EXPECT_GE(factors.min().item<float>(), 0.6f);
  EXPECT_LE(factors.max().item<float>(), 1.4f);
  for (int64_t c = 0; c < 5; ++c) {
    // The mean of 500 uniform draws; five standard deviations.
    EXPECT_NEAR(factors.select(1, c).mean().item<float>(), 1, 5 * 0.8 / std::sqrt(12.0 * 500));
    EXPECT_FALSE(at::equal(factors.select(1, c), factors.select(1, (c + 1) % 5)));
  }
  config.brightness = 3;
  EXPECT_GE(applied(config, images).min().item<float>(), 0);
}

TEST(Augment, ContrastStretchesTheDistanceFromTheMean) {
  AugmentConfig config{};
  config.contrast = 0.5;
  const at::Tensor images = pictures(200, 2, 3, 3);
  const at::Tensor got = applied(config, images);
  std::vector<float> factors;
  for (int64_t row = 0; row < 200; ++row) {
    const at::Tensor from = images[row] - images[row].mean(), to = got[row] - images[row].mean();
    const float factor = (to.select(0, 1)[2][2] / from.select(0, 1)[2][2]).item<float>();
    // Values below 1 rounded three times.
    EXPECT_LT((to - from * factor).abs().max().item<float>(), 1e-6);
    factors.push_back(factor);
  }
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  EXPECT_GT(*least, 0.499f);
  EXPECT_LT(*least, 0.55f);
  EXPECT_LT(*most, 1.501f);
  EXPECT_GT(*most, 1.45f);
}

TEST(Augment, NoiseIsNormalWithItsDeviationAndNewForEverySampleAndPixel) {
  AugmentConfig config{};
  config.noise = 0.25;
  constexpr int64_t kRows = 400, kValues = 3 * 11 * 13;
  const at::Tensor got = applied(config, at::zeros({kRows, 3, 11, 13}));
  const auto* x = got.const_data_ptr<float>();
  constexpr auto n = static_cast<double>(kRows * kValues);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, rows = 0;
  int64_t within = 0, beyond = 0;
  for (int64_t i = 0; i < kRows * kValues; ++i) {
    const double z = x[i] / 0.25;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    if (i > 0) neighbours += z * x[i - 1] / 0.25;
    if (i >= kValues) rows += z * x[i - kValues] / 0.25;
    within += std::abs(z) < 1 ? 1 : 0;
    beyond += std::abs(z) > 3 ? 1 : 0;
  }
  // Five standard deviations of each mean.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(rows / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(static_cast<double>(within) / n, 0.682689, 5 * std::sqrt(0.2166 / n));
  EXPECT_NEAR(static_cast<double>(beyond) / n, 0.0026998, 5 * std::sqrt(0.0027 / n));
}

TEST(Augment, CutoutSetsASquareToZeroCutOffAtTheBorder) {
  AugmentConfig config{};
  config.cutout = 4;
  const at::Tensor images = pictures(500, 2, 9, 7);
  const at::Tensor got = applied(config, images);
  int64_t whole = 0;
  for (int64_t row = 0; row < 500; ++row) {
    const at::Tensor zero = got[row].eq(0);
    EXPECT_TRUE(at::equal(zero[0], zero[1]));
    EXPECT_TRUE(at::equal(got[row], images[row] * zero.logical_not()));
    const int64_t height = zero[0].any(1).sum().item<int64_t>(),
                  width = zero[0].any(0).sum().item<int64_t>();
    EXPECT_EQ(zero[0].sum().item<int64_t>(), height * width);
    // its centre is in the image
    ASSERT_TRUE(height >= 2 && height <= 4 && width >= 2 && width <= 4);
    whole += height == 4 && width == 4 ? 1 : 0;
  }
  // 6 of the 9 rows and 4 of the 7 columns are centres of a whole square.
  EXPECT_NEAR(static_cast<double>(whole), 500.0 * 24 / 63, 5 * std::sqrt(500 * 0.236));
}

AugmentConfig everything() {
  AugmentConfig config{};
  config.crop = 2;
  config.flip = 0.5;
  config.rotate = 20;
  config.scale = 0.1;
  config.brightness = 0.2;
  config.contrast = 0.2;
  config.noise = 0.1;
  config.cutout = 3;
  return config;
}

TEST(Augment, ASampleIsChangedByItsPositionAloneHoweverMicroBatchesAreCut) {
  const at::Tensor images = pictures(12, 3, 9, 8);
  const at::Tensor whole = applied(everything(), images, 1'000'000'007);
  EXPECT_TRUE(at::equal(applied(everything(), images, 1'000'000'007), whole));
  EXPECT_FALSE(at::equal(applied(everything(), images, 1'000'000'007, kSeed + 1), whole));
  for (const int64_t size : {1, 3, 4}) {
    for (int64_t first = 0; first < 12; first += size) {
      const at::Tensor part =
          applied(everything(), images.narrow(0, first, size), 1'000'000'007 + first);
      EXPECT_TRUE(at::equal(part, whole.narrow(0, first, size)));
    }
  }
}

TEST(Augment, SwitchingOneThingOnLeavesTheDrawsOfTheOthers) {
  const at::Tensor images = pictures(20, 1, 8, 8);
  AugmentConfig crop{}, more{};
  crop.crop = more.crop = 2;
  more.cutout = 2;
  const at::Tensor a = applied(crop, images), b = applied(more, images);
  EXPECT_TRUE(at::equal(b, a * b.ne(0)));
}

TEST(Augment, FlatRowsAreImagesToo) {
  const at::Tensor images = pictures(5, 1, 8, 6), flat = images.clone().reshape({5, 48});
  Augment(everything(), {1, 8, 6}, kSeed).apply(std::vector<at::Tensor>{flat}, 0);
  EXPECT_TRUE(at::equal(flat.reshape({5, 1, 8, 6}), applied(everything(), images)));
}

TEST(Augment, EveryCodePathGivesTheSameBits) {
  set_fp_mode();
  const ImageShape shape{3, 13, 11};
  const PhiloxStream stream = philox_stream({1, Purpose::kTest, 2, 3});
  const int64_t n = shape.values();
  const auto changed = [&](auto change) {
    const at::Tensor images = pictures(2, 3, 13, 11);
    std::vector<float> scratch(static_cast<size_t>(turn_scratch(shape)));
    change(images.mutable_data_ptr<float>(), scratch.data());
    return images;
  };
  for (const CodePath path : runnable_paths()) {
#define TUTTI_SAME(name, ...)                                                                \
  {                                                                                          \
    static constexpr decltype(&isa_portable::name) kAll[] = TUTTI_TABLE_OF(name);            \
    const auto on = [&](CodePath one) {                                                      \
      return changed([&](float* x, float* s) {                                               \
        (void)s;                                                                             \
        on_path(kAll, one)(__VA_ARGS__);                                                     \
      });                                                                                    \
    };                                                                                       \
    EXPECT_TRUE(at::equal(on(path), on(CodePath::kPortable))) << #name " " << name_of(path); \
  }
    TUTTI_SAME(turn, x, shape, {0.9f, 0.3f}, s)
    TUTTI_SAME(move, x, shape, 1, -2, true, s)
    TUTTI_SAME(scale, x, n, 1.1f)
    TUTTI_SAME(contrast, x, n, 1.1f)
    TUTTI_SAME(noise, x, n, stream, 0.3f)
    TUTTI_SAME(mix, x, x + n, n, 0.3f, 0.8f)
#undef TUTTI_SAME
  }
}

}  // namespace
}  // namespace tutti
