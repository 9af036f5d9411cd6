// The keys of [layout] that the generator of plans reads as they stand: LayoutConfig and its
// options (plan/make/plan_mesh.h) both have them, so that none of these is copied by hand. What it
// reads in another form (the mesh, the cut as layers) is converted in mesh_options()
// (train/rank_plan.h). A new key is a field here, a row in config/keys.cc, and code in the phase of
// the generator that reads it; if the planner tries its values, also a loop over them in
// plan/search/choose.cc.
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
  int chunks = 2;  ///< of a stage, where the schedule leaves it open
  /// micro-batches that a chunk keeps, in an order made to measure; 0: the published order
  int in_flight = 0;
  Recompute recompute = Recompute::kNone;
  bool overlap = true;
  int depth = 1;                     ///< ZeRO-3: units gathered ahead of their use
  int hosts = 1;                     ///< ranks are grouped into hosts in order
  FoldKind fold = FoldKind::kLocal;  ///< kAuto: until it is resolved
  Offload offload = Offload::kNone;
  /// Small units are merged into a parcel until it has so many floats.
  int64_t bucket_floats = kParcelFloats;
  bool operator==(const PlanKeys&) const = default;
};

}  // namespace tutti
