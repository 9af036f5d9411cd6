// From the grid's additions (pairs of lane ranges) to the fold kernels' (pairs of indices).
#pragma once

#include <vector>

#include "comm/fold.h"
#include "grid/grid.h"

namespace tutti {

/// The additions that finish the subtree `whole` of the tree over all lanes from `parts`, which
/// cover it in leaf order: indices into parts. (A subtree of the tree has the shape of the tree
/// over as many leaves, so its place does not matter.)
std::vector<FoldStep> fold_order(const std::vector<Range>& parts, Range whole);

/// The same additions for each of `count` groups of `terms` terms one after the other, then the
/// groups' sums from left to right.
std::vector<FoldStep> fold_order_of_groups(const std::vector<FoldStep>& order, int terms,
                                           int count);

}  // namespace tutti
