// How long the segments of a model take on this machine: what the planner's cost model is told
// where it may run them.
#pragma once

#include <vector>

#include "model/core/segment.h"
#include "plan/search/cost.h"

namespace tutti {

/// [block][segment], on one core that nothing else uses. Every segment is run a few times, alone;
/// those of one type with equal borders and parameters once. Needs the memory of one block.
std::vector<std::vector<SegmentSeconds>> time_segments(const Model& model);

}  // namespace tutti
