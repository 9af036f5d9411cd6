// Whether a model takes its hand-written segments: on the CPU, unless the job wants autograd's.
#pragma once

#include "config/job.h"

namespace tutti {

inline bool by_hand(const Job& job) {
  return job.numerics.device != DeviceKind::kCuda && !job.model.autograd;
}

}  // namespace tutti
