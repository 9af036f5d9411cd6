// Small things that both engines and the trainer share: tags of the channels beside the reductions' (which use the
// bucket's number), the time-out, and which forward is the last.
#pragma once

#include "base/wait.h"
#include "config/job.h"
#include "engine/gradients.h"
#include "model/segment.h"
#include "plan/ir/program.h"

namespace tutti {

inline constexpr uint32_t kDataChannel = 1 << 20, kMainChannel = kDataChannel + 64, kLoaderChannel = kMainChannel + 64,
                          kRollCall = kLoaderChannel + 64, kForwardRollCall = kRollCall + 64;

inline Duration timeout_of(const Job& job) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.layout.timeout));
}

/// Whether this is the forward that leaves the loss.
inline bool is_last(const Model& model, const Instruction& i) {
  return i.block + 1 == static_cast<int>(model.blocks.size()) &&
         i.segment + 1 == static_cast<int>(model.blocks[i.block].segments.size());
}

/// Bytes of a rank's partials.
inline int64_t window_bytes_of(const Plan& plan, int rank, const GradientPlaces& places) {
  return partials_of(rank, plan) * places.partial_floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace tutti
