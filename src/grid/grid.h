// The arithmetic of a job: lanes, micro-batches, ownership, the summation tree, cuts of a unit.
// Pure functions of small numbers, tested exhaustively for small cases. Nothing here knows of
// processes, memory or models.
//
//   W lanes (fixed parts of the global batch; a lane's sum is the same whoever runs it),
//   N ranks (N <= W), M micro-batches per lane, B samples per micro-batch; a step consumes W*M*B
//   samples, the global batch
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config/job.h"

namespace tutti {

/// Half-open: [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool contains(int64_t i) const { return begin <= i && i < end; }
  bool operator==(const Range&) const = default;
};

/// What two ranges have in common; {0, 0} if that is nothing.
inline Range overlap(Range a, Range b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.empty() ? Range{} : both;
}

/// The global batch of a step.
struct Batch {
  int lanes = 1, micro_batches = 1, micro_batch_size = 1;
  int64_t samples() const { return int64_t{lanes} * micro_batches * micro_batch_size; }
  bool operator==(const Batch&) const = default;
};

Batch batch_of(const TrainConfig& train);

/// The position, in the job's endless order of samples, of the first sample of a micro-batch. Lanes
/// come before micro-batches within the step: ((step * W + lane) * M + micro) * B.
int64_t first_sample(const Batch& batch, int64_t step, int lane, int micro);

/// The lanes that rank `rank` of `ranks` owns: contiguous, in rank order, with sizes that differ by
/// at most one (the first ranks have more).
Range lanes_of(int rank, int ranks, int64_t lanes);

/// The left part of the tree over n >= 2 leaves: the largest power of two below n.
int64_t tree_left(int64_t n);

/// The maximal subtrees of the tree over `lanes` leaves that are wholly in `owned`, in leaf order.
/// Together they cover `owned`.
std::vector<Range> subtrees(Range owned, int64_t lanes);

/// One addition of the tree: the accumulator of the right range is added to that of the left. Lists
/// are in post-order.
struct TreeSum {
  Range left, right;
  bool operator==(const TreeSum&) const = default;
};
/// The additions that finish the tree over `lanes` leaves when the given subtrees (in leaf order,
/// covering all leaves) exist.
std::vector<TreeSum> tree_sums(const std::vector<Range>& parts, int64_t lanes);
/// The additions that a rank makes when lane `lane` of its `owned` lanes has just been completed
/// (as all owned lanes left of it have been): those of its maximal subtrees that end at this lane
/// and were not complete before. They are made in order.
std::vector<TreeSum> sums_after_lane(int64_t lane, Range owned, int64_t lanes);
/// How many whole gradients a rank holds at most while it goes through its lanes in order: the
/// partials that it keeps and the one in work.
int fold_buffers(Range owned, int64_t lanes);

/// Elements in a parameter chunk. Norms are summed by these chunks and units are cut where they
/// begin; they start anew at every parameter.
inline constexpr int64_t kChunk = 4096;
/// Parameters start at multiples of this many floats: 256 bytes (128 in 16 bits), for the matmuls
/// of GPUs choose their kernels by alignment.
inline constexpr int64_t kAlign = 64;
inline int64_t align_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// The parameter chunks of a flat unit whose parameters are at `parameters` (ranges of offsets
/// without padding, ascending): every range is cut into pieces of kChunk, the last of which is
/// shorter.
std::vector<Range> chunks_of(const std::vector<Range>& parameters);
/// Cuts a unit of `size` floats (padding included) into `parts` contiguous slices at the starts of
/// parameter chunks, as even as these allow. Slices cover [0, size) in order; some may be empty.
std::vector<Range> slices_of(const std::vector<Range>& parameters, int64_t size, int parts);

/// Which host a rank is on when `ranks` are grouped into `hosts` in order, with sizes that differ
/// by at most one.
int host_of(int rank, int ranks, int hosts);
/// The ranks of a host.
Range ranks_of_host(int host, int ranks, int hosts);

}  // namespace tutti
