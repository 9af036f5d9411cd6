// The two halves of the classical ring, over slices of one array. They are inexact by
// design: the additions of a slice begin at the rank after its owner, so their order depends
// on the number of ranks.
#pragma once

#include <span>
#include <vector>

#include "grid/grid.h"
#include "net/transport.h"

namespace tutti {

/// Takes N-1 hops: in hop t rank r sends slice r-1-t and adds slice r-2-t, so that it ends
/// with the sum of slice r in data[slices[r]]. `scratch` holds the largest slice. Hop t
/// has the tag's part + t.
void ring_reduce_scatter(Transport& transport, Tag tag, std::span<float> data,
                         const std::vector<Range>& slices, std::span<float> scratch,
                         const Patience& patience);
/// Takes N-1 hops: in hop t rank r hands on slice r-t.
void ring_all_gather(Transport& transport, Tag tag, std::span<float> data,
                     const std::vector<Range>& slices, const Patience& patience);

}  // namespace tutti
