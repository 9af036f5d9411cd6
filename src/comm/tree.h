// Turns the additions of the grid's tree (pairs of lane ranges) into those of the fold kernels
// (pairs of indices into a list of terms).
#pragma once

#include <vector>

#include "comm/fold.h"
#include "grid/grid.h"

namespace tutti {

/// The additions that finish the subtree `whole` of the tree over all lanes from `parts`, which
/// cover it in leaf order, as indices into parts. Where the subtree is does not matter: it has the
/// shape of the tree over as many leaves.
std::vector<FoldStep> fold_order(const std::vector<Range>& parts, Range whole);

/// The same additions for each of `count` groups of `terms` consecutive terms, then the sums of the
/// groups from left to right.
std::vector<FoldStep> fold_order_of_groups(const std::vector<FoldStep>& order, int terms,
                                           int count);

}  // namespace tutti
