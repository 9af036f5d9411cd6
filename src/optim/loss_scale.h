// Dynamic loss scaling for float16: gradients are those of the loss times a scale that keeps small
// ones from vanishing. A step whose gradients overflow is skipped, and the scale halved. The scale
// is part of the state: as text it is hashed and saved with it.
#pragma once

#include <cstdint>
#include <string>

#include "config/job.h"

namespace tutti {

struct LossScale {
  double scale = 1;
  int64_t good = 0;     ///< steps since it last changed
  int64_t skipped = 0;  ///< steps skipped so far
  bool operator==(const LossScale&) const = default;
};

/// The scale that a run starts with: in float16 numerics.loss_scale, or 65536 if that is 0; else 1.
LossScale first_loss_scale(const NumericsConfig& numerics);
/// The scale after a step. `finite`: the step was taken, and after numerics.scale_growth of them in
/// a row the scale doubles (up to 2^24). Else it was skipped, and the scale halves.
LossScale next_loss_scale(LossScale now, bool finite, const NumericsConfig& numerics);
/// Whether a step that is not finite may be skipped: in float16, while the scale can be lowered.
bool may_skip(const LossScale& now, const NumericsConfig& numerics);

/// The text is exact to the last bit, and empty for a LossScale of 1 that skipped nothing.
/// loss_scale_from throws Error on text that is no such record.
std::string to_text(const LossScale& scale);
LossScale loss_scale_from(const std::string& text);

}  // namespace tutti
