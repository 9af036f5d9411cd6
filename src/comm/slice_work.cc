// Blocks exist so that folding starts while later bytes still travel. Neighbouring pieces become one job.
#include "comm/slice_work.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {
namespace {

bool continues(const SumJob& job, const SumJob& next) {
  if (job.src.size() != next.src.size() || job.dst + job.size != next.dst) return false;
  for (size_t s = 0; s < job.src.size(); ++s) {
    if (job.src[s] + job.size != next.src[s]) return false;
  }
  return true;
}

SliceBlock block_of(const ReductionSpec& spec, Range range) {
  SliceBlock block;
  block.runs.push_back(range);
  auto first = std::partition_point(spec.pieces.begin(), spec.pieces.end(),
                                    [&](const Piece& p) { return p.dst + p.size <= range.begin; });
  for (; first != spec.pieces.end() && first->dst < range.end; ++first) {
    const Range part = overlap(range, {first->dst, first->dst + first->size});
    if (part.empty()) continue;
    SumJob job{part.begin, part.size(), {}};
    for (int64_t src : first->src) job.src.push_back(src + part.begin - first->dst);
    if (!block.jobs.empty() && continues(block.jobs.back(), job)) {
      block.jobs.back().size += job.size;
    } else {
      block.jobs.push_back(std::move(job));
    }
  }
  for (const SumJob& job : block.jobs) {
    for (size_t s = 1; s < job.src.size(); ++s) block.runs.push_back({job.src[s], job.src[s] + job.size});
  }
  return block;
}

}  // namespace

int64_t SliceBlock::packed_of(int64_t src) const {
  for (size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].contains(src)) return packed[r] + src - runs[r].begin;
  }
  TUTTI_CHECK(false, "float {} is in no run of its block", src);
}

SliceWork slice_work(const ReductionSpec& spec, Range slice, int64_t block_floats) {
  SliceWork work;
  for (int64_t begin = slice.begin; begin < slice.end; begin += block_floats) {
    SliceBlock block = block_of(spec, {begin, std::min(begin + block_floats, slice.end)});
    for (const Range& run : block.runs) {
      block.packed.push_back(work.packed_size);
      work.packed_size += run.size();
    }
    work.blocks.push_back(std::move(block));
  }
  return work;
}

}  // namespace tutti
