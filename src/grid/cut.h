// Where a sequence of layers is cut into stages.
#pragma once

#include <vector>

#include "grid/grid.h"

namespace tutti {

/// Cuts `costs` into contiguous, non-empty ranges, one for each of `homes`, so that the home that has the most to do
/// has as little as possible, then the most expensive range.
std::vector<Range> cut_by_cost(const std::vector<double>& costs, const std::vector<int>& homes);

}  // namespace tutti
