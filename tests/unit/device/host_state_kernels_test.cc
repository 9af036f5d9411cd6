// The host's own state kernels keep what device/state_kernels.h promises: they are what a GPU's are
// compared with.
#include "support/host_state_kernels.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/lane_values.h"

namespace tutti {
namespace {

using namespace testing_support;

constexpr int64_t kFloats = kChunk + 700;

struct Outcome {
  explicit Outcome(int units) : bytes(outcome_bytes(units)) {}
  StepOutcome* get() { return reinterpret_cast<StepOutcome*>(bytes.data()); }
  float scale(int unit) { return host_kernels::gradient_scales(get())[unit]; }
  std::vector<std::byte> bytes;
};

std::vector<float> values(uint64_t seed) {
  std::vector<float> all(kFloats);
  for (int64_t i = 0; i < kFloats; ++i) all[i] = lane_value(seed, 0, 0, i);
  return all;
}

TrainConfig settings(const char* optimizer) {
  TrainConfig config{};
  config.optimizer = optimizer;
  config.momentum = 0.9;
  config.beta1 = 0.9;
  config.beta2 = 0.99;
  config.eps = 1e-8;
  config.nesterov = true;
  return config;
}

TEST(HostStateKernels, UpdateLikeTheOptimizer) {
  for (const char* name : {"sgd", "adagrad", "rmsprop", "adam", "adamw", "lion"}) {
    const TrainConfig config = settings(name);
    const auto optimizer = make_optimizer(config);
    std::vector<float> p = values(1), g = values(2), expected = p;
    std::vector<std::vector<float>> slots(2, std::vector<float>(kFloats)), other = slots;
    std::vector<float*> given;
    for (size_t s = 0; s < optimizer->slots().size(); ++s) given.push_back(other[s].data());
    const StepScalars scalars{.step = 0, .lr = 0.01, .gradient_scale = 0.25, .weight_decay = 0.1};
    optimizer->update(expected.data(), g.data(), given, kFloats, scalars);

    const auto f = [](double x) { return static_cast<float>(x); };
    RuleScalars rule;
    rule.momentum = Momentum::kFirst;
    const float none = std::numeric_limits<float>::infinity();
    rule.plain = {{0, none},           0.1F,         0.01F, 0.9F, f(config.beta2),
                  f(1 - config.beta2), f(config.eps)};
    const bool decoupled = config.optimizer == "adamw" || config.optimizer == "lion";
    rule.moments = {.gradient = {0, none},
                    .decay = f(decoupled ? 1 - 0.01 * 0.1 : 0.1),
                    .beta1 = f(config.beta1),
                    .rest1 = f(1 - config.beta1),
                    .beta2 = f(config.beta2),
                    .rest2 = f(1 - config.beta2),
                    .eps = f(config.eps),
                    .correction = f(1 / (1 - config.beta1)),
                    .root_correction = f(1 / std::sqrt(1 - config.beta2)),
                    .step_size = f(config.optimizer == "lion" ? 0.01 : 0.01 / (1 - config.beta1))};
    const std::vector<StateChunk> chunks{{0, kChunk, 0, 0, 0}, {kChunk, kFloats - kChunk, 0, 0, 1}};
    Outcome outcome(2);
    outcome.get()->finite = 1;
    host_kernels::gradient_scales(outcome.get())[1] = 0.25F;
    std::vector<c10::BFloat16> low(kFloats);
    UpdateArguments a;
    a.kind = value_named<UpdateKind>(name).value();
    a.nesterov = config.nesterov;
    a.unit = 1;
    a.parameters = p.data();
    a.gradients = g.data();
    a.slots[0] = slots[0].data();
    a.slots[1] = given.size() > 1 ? slots[1].data() : nullptr;
    a.low = low.data();
    a.precision = Precision::kBfloat16;
    a.chunks = chunks.data();
    a.chunk_count = 2;
    a.rules = &rule;
    a.outcome = outcome.get();
    host_state_kernels().update({}, a);
    EXPECT_EQ(p, expected) << name;
    EXPECT_EQ(slots, other) << name;
    EXPECT_NE(p, values(1)) << name;
    for (int64_t i = 0; i < kFloats; ++i) ASSERT_EQ(low[i], c10::BFloat16(p[i])) << name;

    outcome.get()->finite = 0;
    host_state_kernels().update({}, a);
    EXPECT_EQ(p, expected) << name << " wrote a step that is not finite";
  }
}

TEST(HostStateKernels, ScaleLambsStepByEveryParametersOwnTrust) {
  const TrainConfig config = settings("lamb");
  const auto optimizer = make_optimizer(config);
  std::vector<float> p = values(1), g = values(2), expected = p;
  std::vector<std::vector<float>> slots(2, std::vector<float>(kFloats)), other = slots;
  const std::vector<Range> parameters{{0, 700}, {700, kFloats}};
  StepScalars scalars{.step = 0, .lr = 0.5, .gradient_scale = 1, .weight_decay = 0.1};
  for (const Range& range : parameters) {
    const std::vector<float*> at{other[0].data() + range.begin, other[1].data() + range.begin};
    Norms norms;
    optimizer->measure(expected.data() + range.begin, g.data() + range.begin, at, range.size(),
                       scalars, norms);
    scalars.trust = static_cast<float>(trust_ratio(norms));
    optimizer->update(expected.data() + range.begin, g.data() + range.begin, at, range.size(),
                      scalars);
  }
  const auto f = [](double x) { return static_cast<float>(x); };
  RuleScalars rule;
  rule.moments = {.gradient = {0, std::numeric_limits<float>::infinity()},
                  .decay = 0.1F,
                  .beta1 = f(config.beta1),
                  .rest1 = f(1 - config.beta1),
                  .beta2 = f(config.beta2),
                  .rest2 = f(1 - config.beta2),
                  .eps = f(config.eps),
                  .correction = f(1 / (1 - config.beta1)),
                  .root_correction = f(1 / std::sqrt(1 - config.beta2)),
                  .step_size = 0.5F};
  const std::vector<StateChunk> chunks{{0, 700, 0, 0, 0}, {700, kChunk, 0, 1, 1}};
  const std::vector<int64_t> parameter_chunks{0, 1, 2};
  std::vector<double> norms(4);
  std::vector<float> trust(2);
  Outcome outcome(1);
  outcome.get()->finite = 1;
  host_kernels::gradient_scales(outcome.get())[0] = 1;
  UpdateArguments a;
  a.kind = UpdateKind::kLamb;
  a.parameters = p.data();
  a.gradients = g.data();
  a.slots[0] = slots[0].data();
  a.slots[1] = slots[1].data();
  a.chunks = chunks.data();
  a.chunk_count = 2;
  a.rules = &rule;
  a.outcome = outcome.get();
  a.chunk_norms = norms.data();
  a.trust = trust.data();
  a.parameter_chunks = parameter_chunks.data();
  a.parameter_count = 2;
  host_state_kernels().update({}, a);
  EXPECT_EQ(p, expected);
  EXPECT_EQ(slots, other);
  EXPECT_NE(trust[0], trust[1]);
}

TEST(HostStateKernels, TreatBuffersByTheirRoleAndLeaveTheFrozen) {
  std::vector<float> p{1, 2, 3}, g{10, 10, 10};
  std::vector<RuleScalars> rules(3);
  rules[0].role = RuleScalars::kFrozen;
  rules[1].role = RuleScalars::kMeanBuffer;
  rules[1].proposals = 4;
  rules[2].role = RuleScalars::kSumBuffer;
  const std::vector<StateChunk> chunks{{0, 1, 0, 0, 0}, {1, 1, 1, 1, 1}, {2, 1, 2, 2, 2}};
  Outcome outcome(1);
  outcome.get()->finite = 1;
  UpdateArguments a;
  a.parameters = p.data();
  a.gradients = g.data();
  a.chunks = chunks.data();
  a.chunk_count = 3;
  a.rules = rules.data();
  a.outcome = outcome.get();
  host_state_kernels().update({}, a);
  EXPECT_EQ(p, (std::vector<float>{1, 2.5, 13}));
}

TEST(HostStateKernels, CommitClipsByTheWholeNormOrByAUnits) {
  // Unit 0 has chunks of squares 9 and 16, unit 1 one of 144: norms 5, 12, 13, of gradients scaled
  // by 2 and summed over 4 targets.
  std::vector<double> votes{9, 16,         144,         /*losses*/ 1.5, 2.5, /*counts*/ 3,
                            1, /*stop*/ 1, /*saving*/ 2};
  const std::vector<int64_t> unit_chunks{0, 2, 3};
  const VoteLayout layout{
      .units = 2, .micro_batches = 2, .unit_chunks = unit_chunks.data(), .chunks = 3};
  ASSERT_EQ(layout.size(), static_cast<int64_t>(votes.size()));
  StepInputs inputs{.loss_scale = {2, 0}, .clip = 0.5, .clip_by = ClipBy::kNorm};
  Outcome outcome(2);
  const auto commit = [&] {
    host_state_kernels().commit({}, votes.data(), layout, &inputs, outcome.get());
  };
  const auto scale = [](double norm) {
    return static_cast<float>(clip_factor(norm / 8, 0.5) / 4 / 2);
  };
  commit();
  EXPECT_EQ(outcome.get()->loss, 4);
  EXPECT_EQ(outcome.get()->targets, 4);
  EXPECT_EQ(outcome.get()->squares, 169);
  EXPECT_EQ(outcome.get()->stop, 1);
  EXPECT_EQ(outcome.get()->saving, 2);
  EXPECT_EQ(outcome.get()->finite, 1);
  EXPECT_EQ(outcome.scale(0), scale(13));
  EXPECT_EQ(outcome.scale(1), scale(13));
  inputs.clip_by = ClipBy::kUnit;
  commit();
  EXPECT_EQ(outcome.scale(0), scale(5));
  EXPECT_EQ(outcome.scale(1), scale(12));
  EXPECT_NE(outcome.scale(0), outcome.scale(1));
  inputs.clip_by = ClipBy::kValue;
  commit();
  EXPECT_EQ(outcome.scale(0), 0.125F);
  votes[3] = std::numeric_limits<double>::infinity();
  commit();
  EXPECT_EQ(outcome.get()->finite, 0);
}

TEST(HostStateKernels, SumSquaresAtTheChunksPlaces) {
  const std::vector<float> x = values(4);
  const std::vector<StateChunk> chunks{{0, kChunk, 0, 0, 2}, {kChunk, 700, 0, 0, 0}};
  std::vector<double> votes(3, -1);
  host_state_kernels().chunk_squares({}, x.data(), chunks.data(), 2, votes.data());
  EXPECT_EQ(votes, (std::vector<double>{sum_squares(x.data() + kChunk, 700), -1,
                                        sum_squares(x.data(), kChunk)}));
}

}  // namespace
}  // namespace tutti
