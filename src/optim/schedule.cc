// Schedules are pure functions of the step, so they have no state to save.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace tutti {

double learning_rate(const TrainConfig& config, int64_t step, const Watched&) {
  if (step < config.warmup) return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  if (config.schedule == "constant") return config.lr;
  if (config.schedule != "cosine") {
    throw Error(fmt::format("train.schedule = \"{}\": known are cosine and constant", config.schedule));
  }
  const double span = static_cast<double>(std::max<int64_t>(1, config.steps - config.warmup));
  const double progress = std::min(1.0, static_cast<double>(step - config.warmup) / span);
  const double part = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return config.lr * (config.final_lr + (1 - config.final_lr) * part);
}

double clip_factor(double norm, double clip) { return clip == 0 ? 1 : std::min(1.0, clip / (norm + 1e-6)); }

}  // namespace tutti
