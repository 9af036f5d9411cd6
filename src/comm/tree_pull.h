// A sum over the fixed tree: every owner reads all terms of its slices, in the windows of those who
// have them or as their messages arrive, and folds them in the order of the tree.
#pragma once

#include "comm/pulls.h"

namespace tutti {

/// Makes what make_sum_pull() promises, for a sum that has an order.
std::unique_ptr<SumPull> make_tree_pull(const SumTransfer& transfer, TransferName name,
                                        Transport& transport, std::span<std::byte> arena,
                                        std::vector<std::vector<float*>> levels,
                                        std::span<std::byte> scratch);

}  // namespace tutti
