// Evaluation over records that are not trained on: the same micro-batches on the same lanes,
// whatever the layout.
#pragma once

#include "comm/collectives.h"
#include "data/core/dataset.h"
#include "engine/placement.h"
#include "eval/metrics.h"

namespace tutti {

/// The metrics of records [0, records) of `data`. Micro-batch m belongs to lane m mod W. Collective
/// over the channel's ranks, each of which takes part in the lanes that its placement computes;
/// every rank returns the same metrics. `seed` and `step` go into the pass.
Metrics evaluate(const Model& model, Placement& placement, const Dataset& data, int64_t records,
                 const Batch& batch, uint64_t seed, int64_t step, Channel& channel);

}  // namespace tutti
