// What a step is asked to do, and what it came to.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct StepRequest {
  int64_t step = 0;     ///< steps committed before it
  int64_t updates = 0;  ///< how many of them updated: in float16 some are skipped
  double lr = 0;
  double loss_scale = 1;
};

/// What a rank knows of how a step was decided, for ranks that lost the others before they knew:
/// the vote of all, as it goes into updates.
struct Decision {
  int64_t step = -1;  ///< committed before it; -1: none was decided yet
  std::string vote;
};

/// The same on every rank.
struct StepVerdict {
  double loss = 0, gradient_norm = 0;
  bool finite = true;   ///< false: nothing of the step was written
  bool stop = false;    ///< a rank was asked to stop
  bool saving = false;  ///< a rank was writing its share of a checkpoint
};

}  // namespace tutti
