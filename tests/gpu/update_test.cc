// The updates of all optimizers on a GPU against the CPU's, bit for bit, with the copies in low
// precision.
#include <cmath>
#include <limits>

#include "gpu/gpu.h"
#include "grid/grid.h"
#include "optim/optimizer.h"

namespace tutti {
namespace {

UpdateKind kind_of(const std::string& name) {
  const std::vector<std::string> names = {"sgd",   "adagrad", "rmsprop", "adam",
                                          "adamw", "lion",    "lamb"};
  return static_cast<UpdateKind>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// As optim/optimizer.cc makes them, without the gradient's scale.
RuleScalars rule_of(const TrainConfig& config, const StepScalars& s) {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const GradientScalars gradient{
      .scale = std::numeric_limits<float>::quiet_NaN(),
      .limit = s.clip_value > 0 ? rounded(s.clip_value) : std::numeric_limits<float>::infinity()};
  const double t = static_cast<double>(s.step) + 1;
  const bool decoupled = config.optimizer == "adamw" || config.optimizer == "lion";
  const double correction = 1 / (1 - std::pow(config.beta1, t));
  const bool adam = config.optimizer == "adam" || config.optimizer == "adamw";
  RuleScalars rule;
  rule.momentum = config.momentum == 0 ? Momentum::kNone
                  : s.step == 0        ? Momentum::kFirst
                                       : Momentum::kNext;
  rule.plain = {.gradient = gradient,
                .weight_decay = rounded(s.weight_decay),
                .lr = rounded(s.lr),
                .momentum = rounded(config.momentum),
                .beta2 = rounded(config.beta2),
                .rest2 = rounded(1 - config.beta2),
                .eps = rounded(config.eps)};
  rule.moments = {.gradient = gradient,
                  .decay = rounded(decoupled ? 1 - s.lr * s.weight_decay : s.weight_decay),
                  .beta1 = rounded(config.beta1),
                  .rest1 = rounded(1 - config.beta1),
                  .beta2 = rounded(config.beta2),
                  .rest2 = rounded(1 - config.beta2),
                  .eps = rounded(config.eps),
                  .correction = rounded(correction),
                  .root_correction = rounded(1 / std::sqrt(1 - std::pow(config.beta2, t))),
                  .step_size = rounded(adam ? s.lr / (1 - std::pow(config.beta1, t)) : s.lr)};
  return rule;
}

std::vector<uint16_t> in_precision(const std::vector<float>& values, Precision precision) {
  std::vector<uint16_t> low(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    low[i] =
        precision == Precision::kBfloat16 ? c10::BFloat16(values[i]).x : c10::Half(values[i]).x;
  }
  return low;
}

/// A unit of parameters of these sizes and roles, one after the other.
struct Part {
  int64_t size;
  RuleScalars::Role role;
};
const std::vector<Part> kParts = {{1, RuleScalars::kTrained},      {4095, RuleScalars::kTrained},
                                  {10000, RuleScalars::kTrained},  {5000, RuleScalars::kFrozen},
                                  {300, RuleScalars::kMeanBuffer}, {17, RuleScalars::kSumBuffer},
                                  {4096, RuleScalars::kTrained}};
constexpr int kUnit = 2;  // of four

class GpuUpdate : public SeededGpuTest {
 protected:
  GpuUpdate() {
    for (const Part& part : kParts) {
      parameter_chunks.push_back(static_cast<int64_t>(chunks.size()));
      for (int64_t i = 0; i < part.size; i += kChunk) {
        chunks.push_back({.at = total + i,
                          .size = static_cast<int32_t>(std::min(kChunk, part.size - i)),
                          .rule = static_cast<int32_t>(parameter_chunks.size()) - 1,
                          .parameter = static_cast<int32_t>(parameter_chunks.size()) - 1});
      }
      total += part.size;
    }
    parameter_chunks.push_back(static_cast<int64_t>(chunks.size()));
  }

  /// Several steps on the GPU and on the CPU: parameters, slots and the low copy agree in every
  /// bit.
  void compare(const TrainConfig& config, double clip_value, Precision precision) {
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(config);
    const size_t slot_count = optimizer->slots().size();
    std::vector<float> parameters = random_floats(random, total);
    std::vector<std::vector<float>> slots(slot_count, std::vector<float>(total));
    GpuArray<float> on_parameters = on_gpu(parameters), on_gradients(*device, stream, total);
    GpuArray<float> slot0(*device, stream, total), slot1(*device, stream, total);
    GpuArray<uint16_t> low(*device, stream, total);
    GpuArray<StateChunk> on_chunks = on_gpu(chunks);
    GpuArray<RuleScalars> on_rules(*device, stream, kParts.size());
    GpuArray<std::byte> outcome(*device, stream, static_cast<size_t>(outcome_bytes(4)));
    GpuArray<double> norms(*device, stream, 2 * chunks.size());
    GpuArray<float> trust(*device, stream, kParts.size());
    GpuArray<int64_t> on_begins = on_gpu(parameter_chunks);
    const bool has_low = precision != Precision::kFloat32;
    if (has_low) library.state.cast(stream, on_parameters.data(), low.data(), total, precision);
    const UpdateArguments arguments{
        .kind = kind_of(config.optimizer),
        .nesterov = config.nesterov,
        .unit = kUnit,
        .parameters = on_parameters.data(),
        .gradients = on_gradients.data(),
        .slots = {slot_count > 0 ? slot0.data() : nullptr, slot_count > 1 ? slot1.data() : nullptr},
        .low = has_low ? low.data() : nullptr,
        .precision = precision,
        .chunks = on_chunks.data(),
        .chunk_count = static_cast<int64_t>(chunks.size()),
        .rules = on_rules.data(),
        .outcome = reinterpret_cast<const StepOutcome*>(outcome.data()),
        .chunk_norms = norms.data(),
        .trust = trust.data(),
        .parameter_chunks = on_begins.data(),
        .parameter_count = static_cast<int32_t>(kParts.size())};
    for (int64_t step = 0; step < 4; ++step) {
      const bool skipped = step == 2;
      const std::vector<float> gradients = random_floats(random, total, 3);
      const StepScalars scalars{.step = step,
                                .lr = 0.01 / static_cast<double>(step + 1),
                                .gradient_scale = 0.37 / static_cast<double>(step + 2),
                                .clip_value = clip_value,
                                .weight_decay = config.weight_decay};
      on_gradients.set(gradients);
      set_rules(config, scalars, on_rules);
      set_outcome(static_cast<float>(scalars.gradient_scale), !skipped, outcome);
      library.state.update(stream, arguments);
      if (!skipped) on_cpu(*optimizer, config, scalars, parameters, gradients, slots);
      const std::string what = fmt::format("{} at step {}", config.optimizer, step);
      expect_same_bits(on_parameters.get(), parameters, what + ": parameters");
      if (slot_count > 0) expect_same_bits(slot0.get(), slots[0], what + ": first slot");
      if (slot_count > 1) expect_same_bits(slot1.get(), slots[1], what + ": second slot");
      if (has_low)
        expect_same_bits(low.get(), in_precision(parameters, precision), what + ": low copy");
      if (HasFailure()) return;
    }
  }

  std::vector<StateChunk> chunks;
  std::vector<int64_t> parameter_chunks;
  int64_t total = 0;
  static constexpr float kProposals = 3;

 private:
  static void set_rules(const TrainConfig& config, const StepScalars& scalars,
                        GpuArray<RuleScalars>& to) {
    std::vector<RuleScalars> rules;
    for (const Part& part : kParts) {
      rules.push_back(rule_of(config, scalars));
      rules.back().role = part.role;
      rules.back().proposals = kProposals;
    }
    to.set(rules);
  }
  static void set_outcome(float scale, bool finite, GpuArray<std::byte>& to) {
    StepOutcome outcome;
    outcome.finite = finite ? 1 : 0;
    std::vector<float> scales(4, std::numeric_limits<float>::quiet_NaN());
    scales[kUnit] = scale;
    std::vector<std::byte> bytes(to.size());
    std::memcpy(bytes.data(), &outcome, sizeof(outcome));
    std::memcpy(bytes.data() + sizeof(outcome), scales.data(), scales.size() * sizeof(float));
    to.set(bytes);
  }
  void on_cpu(const Optimizer& optimizer, const TrainConfig& config, StepScalars scalars,
              std::vector<float>& parameters, const std::vector<float>& gradients,
              std::vector<std::vector<float>>& slots) const {
    int64_t at = 0;
    for (const Part& part : kParts) {
      std::vector<float*> here;
      for (auto& slot : slots) here.push_back(slot.data() + at);
      if (part.role == RuleScalars::kMeanBuffer) {
        for (int64_t i = at; i < at + part.size; ++i) parameters[i] = gradients[i] / kProposals;
      } else if (part.role == RuleScalars::kSumBuffer) {
        for (int64_t i = at; i < at + part.size; ++i) parameters[i] += gradients[i];
      } else if (part.role == RuleScalars::kTrained && optimizer.two_passes()) {
        lamb_on_cpu(config, scalars, parameters.data() + at, gradients.data() + at, here,
                    part.size);
      } else if (part.role == RuleScalars::kTrained) {
        optimizer.update(parameters.data() + at, gradients.data() + at, here, part.size, scalars);
      }
      at += part.size;
    }
  }
  /// The GPU rounds lr and the trust ratio to float before they are multiplied: the kernels are
  /// called with that.
  static void lamb_on_cpu(const TrainConfig& config, const StepScalars& scalars, float* p,
                          const float* g, const std::vector<float*>& slots, int64_t n) {
    const UpdateKernels kernels = update_kernels(fastest_path());
    MomentScalars s = rule_of(config, scalars).moments;
    s.gradient.scale = static_cast<float>(scalars.gradient_scale);
    double parameter = 0, direction = 0;
    for (int64_t i = 0; i < n; i += kChunk) {
      const ChunkSquares squares = kernels.lamb_measure(p + i, g + i, slots[0] + i, slots[1] + i,
                                                        std::min(kChunk, n - i), s);
      parameter += squares.parameter;
      direction += squares.direction;
    }
    s.step_size *= parameter == 0 || direction == 0
                       ? 1.0f
                       : static_cast<float>(std::sqrt(parameter) / std::sqrt(direction));
    kernels.lamb_update(p, slots[0], slots[1], n, s);
  }
};

TrainConfig config_of(const std::string& name, double momentum) {
  TrainConfig config{};
  config.optimizer = name;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  config.momentum = momentum;
  return config;
}

TEST_F(GpuUpdate, EveryOptimizerGivesTheBitsOfTheCpu) {
  for (const std::string name : {"sgd", "adagrad", "rmsprop", "adam", "adamw", "lion", "lamb"}) {
    const TrainConfig config = config_of(name, 0);
    SCOPED_TRACE(name);
    compare(config, 0, Precision::kFloat32);
    compare(config, 0.5, Precision::kBfloat16);
    compare(config, 0, Precision::kFloat16);
  }
}

TEST_F(GpuUpdate, MomentumGivesTheBitsOfTheCpu) {
  for (const std::string name : {"sgd", "rmsprop"}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && name != "sgd") continue;
      TrainConfig config = config_of(name, 0.9);
      config.nesterov = nesterov;
      SCOPED_TRACE(name + (nesterov ? " with nesterov" : ""));
      compare(config, 0, Precision::kFloat32);
      compare(config, 1, Precision::kBfloat16);
    }
  }
}

TEST_F(GpuUpdate, CastsToTheNearestWithTiesToEven) {
  std::vector<float> values = random_floats(random, 10007);
  // Halves between two neighbours of either precision, overflow, zeros.
  for (const float tie :
       {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-11f, 1 + 0x3p-11f, 65520.0f, 65519.0f, 1e30f, -1e30f,
        0.0f, -0.0f, 0x1p-24f, 0x1p-25f, std::numeric_limits<float>::infinity()}) {
    values.push_back(tie);
  }
  GpuArray<float> from = on_gpu(values);
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    GpuArray<uint16_t> to(*device, stream, values.size());
    library.state.cast(stream, from.data(), to.data(), static_cast<int64_t>(values.size()),
                       precision);
    expect_same_bits(to.get(), in_precision(values, precision), "cast");
  }
  GpuArray<float> to(*device, stream, values.size());
  library.state.cast(stream, from.data(), to.data(), static_cast<int64_t>(values.size()),
                     Precision::kFloat32);
  expect_same_bits(to.get(), values, "copy");
}

}  // namespace
}  // namespace tutti
