// Lion and LAMB, which LibTorch does not have, against their papers written out in double; and what
// LAMB's two passes promise.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "grid/grid.h"
#include "optim/optimizer.h"

namespace tutti {
namespace {

constexpr int kSteps = 50;
constexpr double kLr = 1e-2, kDecay = 0.1, kScale = 0.25, kBeta1 = 0.9, kBeta2 = 0.98, kEps = 1e-6;

// Relative to the way that an element went. Each of 50 steps rounds a few operations to float,
// about a unit in the last place (6e-8) each.
constexpr double kTolerance = 1e-6;

TrainConfig config_of(const char* optimizer) {
  TrainConfig config{};
  config.optimizer = optimizer;
  config.beta1 = kBeta1;
  config.beta2 = kBeta2;
  config.eps = kEps;
  return config;
}

std::vector<float> drawn(size_t n, uint32_t seed, float size = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> out(n);
  for (float& x : out) x = normal(generator);
  return out;
}

/// The values of the reference in double, and the way each has gone: |start| + the sum of |moves|.
struct Reference {
  explicit Reference(const std::vector<float>& start)
      : x(start.begin(), start.end()), way(start.size()) {
    for (size_t i = 0; i < x.size(); ++i) way[i] = std::abs(x[i]);
  }
  void move(size_t i, double by) {
    x[i] += by;
    way[i] += std::abs(by);
  }
  double worst(const std::vector<float>& ours) const {
    double worst = 0;
    for (size_t i = 0; i < ours.size(); ++i)
      worst = std::max(worst, std::abs(ours[i] - x[i]) / way[i]);
    return worst;
  }
  std::vector<double> x, way;
};

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

TEST(AgainstPaper, LionStaysWithItsPaperForFiftySteps) {
  constexpr size_t kSize = 1003;
  std::vector<float> p = drawn(kSize, 1), m(kSize);
  Reference reference(p);
  std::vector<double> moment(kSize);
  auto optimizer = make_optimizer(config_of("lion"));
  for (int t = 0; t < kSteps; ++t) {
    std::vector<float> g = drawn(kSize, 100 + t);
    g[17] = 0;  // never a gradient: stays where decay leaves it
    float* slots[] = {m.data()};
    optimizer->update(p.data(), g.data(), slots, kSize,
                      {.step = t, .lr = kLr, .gradient_scale = kScale, .weight_decay = kDecay});
    for (size_t i = 0; i < kSize; ++i) {
      const double slope = g[i] * kScale;
      const double way = sign(kBeta1 * moment[i] + (1 - kBeta1) * slope) + kDecay * reference.x[i];
      reference.move(i, -kLr * way);
      moment[i] = kBeta2 * moment[i] + (1 - kBeta2) * slope;
    }
  }
  EXPECT_LT(reference.worst(p), kTolerance);
}

/// One step of LAMB as a trainer makes it: both passes over one parameter.
void lamb_step(const Optimizer& optimizer, std::vector<float>& p, const std::vector<float>& g,
               std::vector<float>& m, std::vector<float>& v, StepScalars scalars) {
  float* slots[] = {m.data(), v.data()};
  const auto n = static_cast<int64_t>(p.size());
  Norms norms;
  optimizer.measure(p.data(), g.data(), slots, n, scalars, norms);
  scalars.trust = trust_ratio(norms);
  optimizer.update(p.data(), g.data(), slots, n, scalars);
}

TEST(AgainstPaper, LambStaysWithItsPaperForFiftySteps) {
  auto optimizer = make_optimizer(config_of("lamb"));
  for (float size : {0.01f, 1.0f, 30.0f}) {  // so trust is far from 1 on both sides
    const size_t n = 9001;                   // two chunks and a tail
    std::vector<float> p = drawn(n, 1, size), m(n), v(n);
    Reference reference(p);
    std::vector<double> first(n), second(n), u(n);
    for (int t = 0; t < kSteps; ++t) {
      const std::vector<float> g = drawn(n, 100 + t);
      lamb_step(*optimizer, p, g, m, v,
                {.step = t, .lr = kLr, .gradient_scale = kScale, .weight_decay = kDecay});
      double parameter = 0, direction = 0;
      for (size_t i = 0; i < n; ++i) {
        const double slope = g[i] * kScale;
        first[i] = kBeta1 * first[i] + (1 - kBeta1) * slope;
        second[i] = kBeta2 * second[i] + (1 - kBeta2) * slope * slope;
        const double m_hat = first[i] / (1 - std::pow(kBeta1, t + 1)),
                     v_hat = second[i] / (1 - std::pow(kBeta2, t + 1));
        u[i] = m_hat / (std::sqrt(v_hat) + kEps) + kDecay * reference.x[i];
        parameter += reference.x[i] * reference.x[i];
        direction += u[i] * u[i];
      }
      for (size_t i = 0; i < n; ++i)
        reference.move(i, -kLr * std::sqrt(parameter / direction) * u[i]);
    }
    EXPECT_LT(reference.worst(p), kTolerance) << "parameters of size " << size;
  }
}

TEST(Lamb, MeasuringWholeChunksInAnyPartsGivesTheSameNormsForBothInstructionSets) {
  const int64_t n = 5 * kChunk + 77;
  const std::vector<float> p = drawn(n, 1), g = drawn(n, 2);
  const StepScalars scalars{.step = 3, .lr = kLr, .gradient_scale = kScale, .weight_decay = kDecay};
  Norms whole;
  std::vector<float> whole_m = drawn(n, 3), whole_v(n, 0.5f);
  float* whole_slots[] = {whole_m.data(), whole_v.data()};
  make_optimizer(config_of("lamb"))->measure(p.data(), g.data(), whole_slots, n, scalars, whole);
  for (const CodePath path : runnable_paths()) {
    for (int64_t cut = 0; cut <= 5; ++cut) {
      auto optimizer = make_optimizer(config_of("lamb"), path);
      std::vector<float> m = drawn(n, 3), v(n, 0.5f);
      Norms left, right;
      const int64_t at = cut * kChunk;
      float* high[] = {m.data() + at, v.data() + at};
      float* low[] = {m.data(), v.data()};
      optimizer->measure(p.data() + at, g.data() + at, high, n - at, scalars, right);
      optimizer->measure(p.data(), g.data(), low, at, scalars, left);
      right.merge(left);
      EXPECT_EQ(right.parameter, whole.parameter) << name_of(path) << " " << cut;
      EXPECT_EQ(right.direction, whole.direction) << name_of(path) << " " << cut;
      EXPECT_EQ(trust_ratio(right), trust_ratio(whole));
      EXPECT_EQ(std::memcmp(m.data(), whole_m.data(), sizeof(float) * n), 0);
      EXPECT_EQ(std::memcmp(v.data(), whole_v.data(), sizeof(float) * n), 0);
    }
  }
}

TEST(Lamb, AMaskedTailAddsNothingToTheNormsEvenWithoutEps) {
  TrainConfig config = config_of("lamb");
  config.eps = 0;  // a masked lane is 0 / 0
  for (const CodePath path : runnable_paths()) {
    auto optimizer = make_optimizer(config, path);
    for (int64_t n = 1; n < 40; ++n) {
      std::vector<float> p(n, 2), g(n, 1), m(n), v(n);
      float* slots[] = {m.data(), v.data()};
      Norms norms;
      optimizer->measure(p.data(), g.data(), slots, n, {.step = 0, .lr = 1}, norms);
      EXPECT_EQ(norms.parameter.value(), 4.0 * static_cast<double>(n)) << name_of(path) << " " << n;
      EXPECT_NEAR(norms.direction.value(), static_cast<double>(n), 1e-5 * static_cast<double>(n))
          << name_of(path) << " " << n;
    }
  }
}

TEST(Lamb, TrustIsTheRatioOfTheNormsAndOneWhereEitherIsZero) {
  Norms norms;
  EXPECT_EQ(trust_ratio(norms), 1);
  norms.parameter.add(9);
  EXPECT_EQ(trust_ratio(norms), 1);
  norms.direction.add(16);
  EXPECT_EQ(trust_ratio(norms), 0.75);
  Norms still;
  still.direction.add(4);
  EXPECT_EQ(trust_ratio(still), 1);
}

}  // namespace
}  // namespace tutti
