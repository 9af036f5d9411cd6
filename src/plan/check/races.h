// Whether all that touches a buffer is ordered, in every interleaving: within a rank, and where others read windows.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"
#include "plan/check/structure.h"
#include "plan/make/transfers.h"

namespace tutti {

/// Gathers of the plan by id, made once for all who ask.
using Copies = std::unordered_map<uint32_t, CopyTransfer>;

/// The plan's form must be sound.
std::vector<std::string> check_mesh_races(const Plan& plan, const Ordering& ordering, const Copies& copies,
                                          const TouchedByAll& touched);

/// The buffer of a rank in whose window a byte lies; -1: none.
int window_buffer(const Program& program, int64_t offset);

}  // namespace tutti
