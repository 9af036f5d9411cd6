// What it takes to finish one slice of a bucket: which floats of a partial are read, and which sums they go into.
// Sender and owner compute it alike, so messages need no description.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/reduction.h"

namespace tutti {

/// result[dst, dst+size) = sum over src of tree(partials[src, src+size)).
struct SumJob {
  int64_t dst = 0, size = 0;
  std::vector<int64_t> src;
};

/// A part of a slice that is sent, waited for and folded together. Its runs (ranges of a partial) lie packed one after
/// another in a message buffer: first the block's own range, then what shared parameters add.
struct SliceBlock {
  std::vector<Range> runs;
  std::vector<int64_t> packed;  ///< where each run begins in the slice's message buffer
  std::vector<SumJob> jobs;
  /// Where float `src` of a partial lies in the slice's message buffer.
  int64_t packed_of(int64_t src) const;
};

struct SliceWork {
  std::vector<SliceBlock> blocks;
  int64_t packed_size = 0;  ///< floats of one partial that the owner needs
};

SliceWork slice_work(const ReductionSpec& spec, Range slice, int64_t block_floats);

}  // namespace tutti
