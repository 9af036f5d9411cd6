// The keys of [layout] that a plan is made by, just as they are: LayoutConfig and the options of
// the generator (plan/make/plan_mesh.h) both have them, so that no key is copied by hand. To add
// one: its field here, its row in config/keys.cc, and the pass of the generator that reads it.
#pragma once

#include <cstdint>
#include <string>

#include "config/enums.h"

namespace tutti {

/// The default of layout.bucket_floats: 1 MiB, which hides a transfer's fixed costs.
inline constexpr int64_t kParcelFloats = 1 << 18;

struct PlanKeys {
  int zero = 0;  ///< ZeRO stage; -1: auto, until it is resolved
  std::string schedule = "1f1b";
  int chunks = 1;  ///< of a stage, where the schedule leaves it open
  /// micro-batches that a chunk keeps, in an order made to measure; 0: the published order
  int in_flight = 0;
  Recompute recompute = Recompute::kNone;
  bool overlap = true;
  int depth = 1;  ///< ZeRO-3: units gathered ahead of their use
  int hosts = 1;  ///< ranks are grouped into hosts in order
};

}  // namespace tutti
