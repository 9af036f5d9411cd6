// The rules of the loss scale. It only halves and doubles, so a power of two (the default is one)
// stays one, and scaling a loss and dividing its gradient by it round nothing in the normal range.
#include "optim/loss_scale.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace tutti {

namespace {

constexpr double kFirst = 65536, kLargest = 0x1p24, kSmallest = 1;

}  // namespace

LossScale first_loss_scale(const NumericsConfig& numerics) {
  if (numerics.precision != Precision::kFloat16) return {};
  return {numerics.loss_scale > 0 ? numerics.loss_scale : kFirst, 0, 0};
}

LossScale next_loss_scale(LossScale now, bool finite, const NumericsConfig& numerics) {
  if (numerics.precision != Precision::kFloat16) return now;
  // Overflow starts the count of good steps anew.
  if (!finite) return {now.scale / 2, 0, now.skipped + 1};
  ++now.good;
  if (now.good >= numerics.scale_growth && now.scale * 2 <= kLargest) {
    now.scale *= 2;
    now.good = 0;
  }
  return now;
}

bool may_skip(const LossScale& now, const NumericsConfig& numerics) {
  return numerics.precision == Precision::kFloat16 && now.scale / 2 >= kSmallest;
}

std::string to_text(const LossScale& scale) {
  if (scale == LossScale{}) return {};
  return fmt::format("scale {:a} good {} skipped {}", scale.scale, scale.good, scale.skipped);
}

LossScale loss_scale_from(const std::string& text) {
  LossScale scale;
  if (text.empty()) return scale;
  // The whole text must match and be sensible: a damaged record is an error.
  int read = 0;
  if (std::sscanf(text.c_str(), "scale %la good %" SCNd64 " skipped %" SCNd64 "%n", &scale.scale,
                  &scale.good, &scale.skipped, &read) != 3 ||
      read != static_cast<int>(text.size()) || !(scale.scale > 0) || std::isinf(scale.scale) ||
      scale.good < 0 || scale.skipped < 0)
    throw Error(fmt::format("\"{}\" is no record of a loss scale", text));
  return scale;
}

}  // namespace tutti
