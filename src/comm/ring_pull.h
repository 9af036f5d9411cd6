// A sum without an order (numerics.reduce = "ring"): the classical ring all-reduce, for comparison
// and for those who ask for it by name. Each rank first adds up its own terms from left to right
// (and the further gradients of shared parameters), and then the ring runs over the units. The
// order of additions depends on the number of ranks.
#pragma once

#include "comm/pulls.h"

namespace tutti {

/// Every rank of the transport takes part and makes a slice, and all sums are returned to all.
std::unique_ptr<SumPull> make_ring_pull(const SumTransfer& transfer, TransferName name,
                                        Transport& transport, std::span<std::byte> arena,
                                        std::span<std::byte> scratch);
int64_t ring_scratch_bytes(const SumTransfer& transfer);

}  // namespace tutti
