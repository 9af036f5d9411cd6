// What the optimizers of a job have in common: the scalars of a step, computed in double and
// rounded to float once, with the scaling and clipping of gradients among them. A new optimizer
// derives from Fused and changes what differs for it.
#pragma once

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/portable_math.h"
#include "optim/optimizer.h"
#include "optim/update_kernels.h"

namespace tutti {

/// A scalar as the kernels take it: computed in double, rounded once.
inline float rounded(double value) { return static_cast<float>(value); }

/// What every gradient is multiplied by and cut to, before the optimizer sees it.
inline GradientScalars gradient_scalars(const StepScalars& scalars) {
  return {.scale = rounded(scalars.gradient_scale),
          .limit = scalars.clip_value > 0 ? rounded(scalars.clip_value)
                                          : std::numeric_limits<float>::infinity()};
}

/// What all optimizers have in common: the job's values, the kernels, and a check that they get the
/// slots that they declared.
class Fused : public Optimizer {
 public:
  Fused(const TrainConfig& config, const UpdateKernels& kernels)
      : config_(config), kernels_(kernels) {}
  UpdateScalars scalars(const StepScalars& scalars) const override {
    return {plain(scalars), moments(scalars), Momentum::kNone};
  }

 protected:
  void check(std::span<float* const> given) const {
    TUTTI_CHECK(given.size() == slots().size(), "{} got {} slots", config_.optimizer, given.size());
  }
  PlainScalars plain(const StepScalars& scalars) const {
    return {
        .gradient = gradient_scalars(scalars),
        .weight_decay = rounded(scalars.weight_decay),
        .lr = rounded(scalars.lr),
        .momentum = rounded(config_.momentum),
        .beta2 = rounded(config_.beta2),
        .rest2 = rounded(1 - config_.beta2),
        .eps = rounded(config_.eps),
    };
  }
  /// The scalars for a decay that is part of the gradient, and with lr as it is; each optimizer
  /// changes what differs for it.
  MomentScalars moments(const StepScalars& scalars) const {
    const double t = static_cast<double>(scalars.step) + 1;
    return {
        .gradient = gradient_scalars(scalars),
        .decay = rounded(scalars.weight_decay),
        .beta1 = rounded(config_.beta1),
        .rest1 = rounded(1 - config_.beta1),
        .beta2 = rounded(config_.beta2),
        .rest2 = rounded(1 - config_.beta2),
        .eps = rounded(config_.eps),
        .correction = rounded(1 / (1 - portable::pow(config_.beta1, t))),
        .root_correction = rounded(1 / std::sqrt(1 - portable::pow(config_.beta2, t))),
        .step_size = rounded(scalars.lr),
    };
  }
  /// A gradient as an optimizer sees it, for those that have no kernel. NaN stays NaN.
  static float scaled(float gradient, const GradientScalars& scalars) {
    const float value = gradient * scalars.scale;
    return value > scalars.limit ? scalars.limit : value < -scalars.limit ? -scalars.limit : value;
  }
  /// What a decoupled weight decay multiplies a value by.
  static float decoupled(const StepScalars& scalars) {
    return rounded(1 - scalars.lr * scalars.weight_decay);
  }

  TrainConfig config_;
  UpdateKernels kernels_;
};

}  // namespace tutti
