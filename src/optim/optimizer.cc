// The host side of the optimizers: the scalars of a step are computed in double and rounded to
// float once; the kernels do the rest. One class per optimizer says which slots it keeps and in
// what its scalars differ.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/portable_math.h"
#include "base/processor.h"
#include "config/job_parts.h"
#include "grid/grid.h"
#include "optim/fused.h"
#include "optim/update_kernels.h"

namespace tutti {
namespace {

/// Its first step starts the momentum, so a slot's initial zeros are never mixed in.
class Sgd final : public Fused {
 public:
  using Fused::Fused;
  std::vector<std::string> slots() const override {
    return config_.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"m"};
  }

  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    const UpdateScalars s = this->scalars(scalars);
    kernels_.sgd(parameters, gradients, slots.empty() ? nullptr : slots[0], n, s.plain, s.momentum,
                 config_.nesterov);
  }

  UpdateScalars scalars(const StepScalars& scalars) const override {
    UpdateScalars s = Fused::scalars(scalars);
    if (config_.momentum != 0) s.momentum = scalars.step == 0 ? Momentum::kFirst : Momentum::kNext;
    return s;
  }
};

/// The plain scalars are all it needs.
class Adagrad final : public Fused {
 public:
  using Fused::Fused;
  std::vector<std::string> slots() const override { return {"sum"}; }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    kernels_.adagrad(parameters, gradients, slots[0], n, plain(scalars));
  }
};

class Rmsprop final : public Fused {
 public:
  using Fused::Fused;
  std::vector<std::string> slots() const override {
    return config_.momentum == 0 ? std::vector<std::string>{"v"}
                                 : std::vector<std::string>{"v", "m"};
  }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    kernels_.rmsprop(parameters, gradients, slots[0], slots.size() > 1 ? slots[1] : nullptr, n,
                     plain(scalars));
  }
};

/// adam and adamw, which differ in how the weight decay enters.
class Adam final : public Fused {
 public:
  Adam(const TrainConfig& config, const UpdateKernels& kernels, bool coupled)
      : Fused(config, kernels), coupled_(coupled) {}
  std::vector<std::string> slots() const override { return {"m", "v"}; }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    (coupled_ ? kernels_.adam : kernels_.adamw)(parameters, gradients, slots[0], slots[1], n,
                                                this->scalars(scalars).moments);
  }
  UpdateScalars scalars(const StepScalars& scalars) const override {
    UpdateScalars s = Fused::scalars(scalars);
    // Adam's correction of the first moment is one factor of the step.
    const double t = static_cast<double>(scalars.step) + 1;
    s.moments.step_size = rounded(scalars.lr / (1 - portable::pow(config_.beta1, t)));
    if (!coupled_) s.moments.decay = decoupled(scalars);
    return s;
  }

 private:
  const bool coupled_;  // weight decay is added to the gradient
};

/// One slot, and no corrections: only the sign of the direction counts.
class Lion final : public Fused {
 public:
  using Fused::Fused;
  std::vector<std::string> slots() const override { return {"m"}; }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    kernels_.lion(parameters, gradients, slots[0], n, this->scalars(scalars).moments);
  }
  UpdateScalars scalars(const StepScalars& scalars) const override {
    UpdateScalars s = Fused::scalars(scalars);
    s.moments.decay = decoupled(scalars);
    return s;
  }
};

/// Two passes: a step needs the norms of the whole parameter, which may be spread over ranks.
class Lamb final : public Fused {
 public:
  using Fused::Fused;
  std::vector<std::string> slots() const override { return {"m", "v"}; }
  bool two_passes() const override { return true; }
  void measure(const float* parameters, const float* gradients, std::span<float* const> slots,
               int64_t n, const StepScalars& scalars, Norms& norms) const override {
    check(slots);

    // By chunk, since the order of sums within a chunk is fixed, and between chunks the sum
    // is exact.
    const MomentScalars values = moments(scalars);
    for (int64_t i = 0; i < n; i += kChunk) {
      const ChunkSquares squares =
          kernels_.lamb_measure(parameters + i, gradients + i, slots[0] + i, slots[1] + i,
                                std::min(kChunk, n - i), values);
      norms.parameter.add(squares.parameter);
      norms.direction.add(squares.direction);
    }
  }
  void update(float* parameters, const float*, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    check(slots);
    MomentScalars values = moments(scalars);
    values.step_size = rounded(scalars.lr * scalars.trust);
    kernels_.lamb_update(parameters, slots[0], slots[1], n, values);
  }
};

}  // namespace

void Norms::merge(const Norms& other) {
  parameter.merge(other.parameter);
  direction.merge(other.direction);
}

double trust_ratio(const Norms& norms) {
  const double parameter = std::sqrt(norms.parameter.value()),
               direction = std::sqrt(norms.direction.value());
  return parameter == 0 || direction == 0 ? 1 : parameter / direction;
}

void Optimizer::measure(const float*, const float*, std::span<float* const>, int64_t,
                        const StepScalars&, Norms&) const {
  TUTTI_CHECK(false, "an optimizer of one pass was asked to measure");
}

namespace {

/// An optimizer of the table in config/job_parts.cc. One with a file of its own is declared above
/// this table.
struct Row {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const TrainConfig& config, const UpdateKernels& kernels);
};

template <class Made, auto... more>
std::unique_ptr<Optimizer> make(const TrainConfig& config, const UpdateKernels& kernels) {
  return std::make_unique<Made>(config, kernels, more...);
}

constexpr Row kOptimizers[] = {
    {"sgd", make<Sgd>},         {"adagrad", make<Adagrad>},   {"rmsprop", make<Rmsprop>},
    {"adam", make<Adam, true>}, {"adamw", make<Adam, false>}, {"lion", make<Lion>},
    {"lamb", make<Lamb>},
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, CodePath path) {
  const UpdateKernels kernels = update_kernels(path);
  for (const Row& row : kOptimizers) {
    if (row.name != config.optimizer) continue;
    std::unique_ptr<Optimizer> made = row.make(config, kernels);

    // The checks of a job refuse ZeRO by the part's row; this is what the engine goes by.
    const bool sliced = part_named<OptimizerPart>(config.optimizer).sliced;
    TUTTI_CHECK(made->two_passes() != sliced, "{}: `sliced` of its row is wrong", config.optimizer);
    return made;
  }
  throw Error(fmt::format("train.optimizer = \"{}\": not an optimizer", config.optimizer));
}

std::vector<std::string> optimizer_names() { return row_names(kOptimizers); }

double clip_factor(double norm, double clip) {
  return clip == 0 ? 1 : std::min(1.0, clip / (norm + 1e-6));
}

}  // namespace tutti
