// Dynamic loss scaling for float16: gradients are computed of the loss times a scale that keeps
// small ones from vanishing; a step whose gradients overflowed is skipped and the scale halved.
// Part of the state: it is hashed and saved with it, as text.
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

/// Where a run starts: 1 but in float16, there numerics.loss_scale, 65536 if that is 0.
LossScale first_loss_scale(const NumericsConfig& numerics);
/// After a step. `finite`: it was taken, and after numerics.scale_growth of them in a row the scale
/// doubles (up to 2^24); else it was skipped and the scale halves.
LossScale next_loss_scale(LossScale now, bool finite, const NumericsConfig& numerics);
/// Whether a step that is not finite may be skipped: in float16 while there is a scale to lower.
bool may_skip(const LossScale& now, const NumericsConfig& numerics);

/// Exact to the last bit; empty for a LossScale of 1 that skipped nothing. Throws Error on text
/// that is none.
std::string to_text(const LossScale& scale);
LossScale loss_scale_from(const std::string& text);

}  // namespace tutti
