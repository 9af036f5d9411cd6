// The host side of the optimizers: the scalars of a step are computed in double and rounded to float once; the kernels
// do the rest.
#include "optim/optimizer.h"

#include <cmath>

#include "base/error.h"
#include "optim/update.h"

namespace tutti {
namespace {

struct Kernels {
  decltype(&isa_avx2::adamw) adamw;
  decltype(&isa_avx2::sgd) sgd;
};

Kernels kernels_of(std::string_view isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  if (avx512 && (isa == "avx512" || isa == "auto")) return {isa_avx512::adamw, isa_avx512::sgd};
  if (avx2 && (isa == "avx2" || isa == "auto")) return {isa_avx2::adamw, isa_avx2::sgd};
  throw Error(fmt::format("numerics.isa = \"{}\": this processor does not have it", isa));
}

float rounded(double value) { return static_cast<float>(value); }

class Adamw final : public Optimizer {
 public:
  Adamw(const TrainConfig& config, Kernels kernels) : config_(config), kernels_(kernels) {}
  std::vector<std::string> slots() const override { return {"m", "v"}; }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    TUTTI_CHECK(slots.size() == 2, "adamw got {} slots", slots.size());
    const double t = static_cast<double>(scalars.step) + 1;
    const AdamwScalars values{
        .gradient_scale = rounded(scalars.gradient_scale),
        .decay = rounded(1 - scalars.lr * config_.weight_decay),
        .beta1 = rounded(config_.beta1),
        .rest1 = rounded(1 - config_.beta1),
        .beta2 = rounded(config_.beta2),
        .rest2 = rounded(1 - config_.beta2),
        .root_correction = rounded(1 / std::sqrt(1 - std::pow(config_.beta2, t))),
        .eps = rounded(config_.eps),
        .step_size = rounded(scalars.lr / (1 - std::pow(config_.beta1, t))),
    };
    kernels_.adamw(parameters, gradients, slots[0], slots[1], n, values);
  }

 private:
  TrainConfig config_;
  Kernels kernels_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const TrainConfig& config, Kernels kernels) : config_(config), kernels_(kernels) {}
  std::vector<std::string> slots() const override {
    return config_.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"m"};
  }
  void update(float* parameters, const float* gradients, std::span<float* const> slots, int64_t n,
              const StepScalars& scalars) const override {
    const bool kept = config_.momentum != 0;
    TUTTI_CHECK(slots.size() == (kept ? 1 : 0), "sgd got {} slots", slots.size());
    const SgdScalars values{
        .gradient_scale = rounded(scalars.gradient_scale),
        .weight_decay = rounded(config_.weight_decay),
        .momentum = rounded(config_.momentum),
        .lr = rounded(scalars.lr),
    };
    const Momentum momentum = !kept ? Momentum::kNone : scalars.step == 0 ? Momentum::kFirst : Momentum::kNext;
    kernels_.sgd(parameters, gradients, kept ? slots[0] : nullptr, n, values, momentum, config_.nesterov);
  }

 private:
  TrainConfig config_;
  Kernels kernels_;
};

}  // namespace

void Optimizer::measure(const float*, const float*, std::span<float* const>, int64_t, const StepScalars&,
                        Norms&) const {
  TUTTI_CHECK(false, "an optimizer of one pass was asked to measure");
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::string_view isa) {
  const Kernels kernels = kernels_of(isa);
  if (config.optimizer == "adamw") return std::make_unique<Adamw>(config, kernels);
  if (config.optimizer == "sgd") return std::make_unique<Sgd>(config, kernels);
  throw Error(fmt::format("train.optimizer = \"{}\": known are adamw and sgd", config.optimizer));
}

}  // namespace tutti
