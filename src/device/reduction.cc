// A message is a run: a range of a partial that its receiver needs. Sender and receiver work out the runs of a slice
// alike. In scratch a run begins as far from a 256-byte border as it does in the partial, so that all terms of a fold
// can be read in equal vectors.
#include "device/reduction.h"

#include <algorithm>

#include "base/error.h"
#include "comm/groups.h"
#include "comm/slice_work.h"
#include "comm/tree.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

struct Run {
  Range floats;    // of a partial
  int64_t at = 0;  // in the scratch of one partial
};

struct SliceRuns {
  std::vector<Run> runs;
  std::vector<SumJob> jobs;
  int64_t scratch = 0;  // floats for one partial

  int64_t scratch_of(int64_t src) const {
    for (const Run& run : runs) {
      if (run.floats.contains(src)) return run.at + src - run.floats.begin;
    }
    TUTTI_CHECK(false, "float {} is in no run of its slice", src);
  }
};

SliceRuns runs_of(const ReductionSpec& spec, Range slice) {
  SliceRuns all;
  const SliceWork work = slice_work(spec, slice, std::max<int64_t>(1, slice.size()));
  if (work.blocks.empty()) return all;
  all.jobs = work.blocks[0].jobs;
  std::vector<Range> ranges = work.blocks[0].runs;
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : ranges) {
    if (!all.runs.empty() && all.runs.back().floats.end == range.begin) {
      all.runs.back().floats.end = range.end;
    } else {
      all.runs.push_back({range, 0});
    }
  }
  for (Run& run : all.runs) {
    run.at = align_up(all.scratch, kAlign) + run.floats.begin % kAlign;
    all.scratch = run.at + run.floats.size();
  }
  all.scratch = align_up(all.scratch, kAlign);
  return all;
}

/// A term of a fold: a partial of mine, or one of a peer's in scratch.
struct Leaf {
  Range lanes;
  const float* at;
  bool mine;
};

}  // namespace

int64_t DeviceReduction::scratch_bytes(const ReductionSpec& spec, int rank) {
  if (spec.kind == ReduceKind::kRing) return 0;
  int64_t partials = 0;
  for (size_t r = 0; r < spec.owned.size(); ++r) {
    if (static_cast<int>(r) != rank) partials += static_cast<int64_t>(spec.offsets[r].size());
  }
  return partials * runs_of(spec, fold_slices(spec)[rank]).scratch * kFloat;
}

DeviceReduction::DeviceReduction(const ReductionSpec& spec, float* arena, Device& device, DeviceGroup* group,
                                 const StateKernels& kernels)
    : device_(device),
      group_(group),
      kernels_(kernels),
      me_(group == nullptr ? 0 : group->rank()),
      size_(group == nullptr ? 1 : group->size()),
      kind_(spec.kind),
      gather_at_once_(spec.fold == FoldAt::kRoot),
      result_size_(spec.result_size) {
  check(spec);
  for (int64_t offset : spec.offsets[me_]) partials_.push_back(arena + offset / kFloat);
  if (kind_ == ReduceKind::kRing) {
    prepare_ring(spec);
    return;
  }
  const std::vector<Range> slices = fold_slices(spec);
  if (const int64_t bytes = scratch_bytes(spec, me_); bytes > 0) scratch_ = device.take(BufferKind::kMessage, bytes);
  prepare_exchange(spec, slices);
  prepare_folds(spec, slices[me_]);
  prepare_gather(slices);
}

DeviceReduction::~DeviceReduction() {
  if (!scratch_.empty()) device_.give_back(scratch_);
}

void DeviceReduction::check(const ReductionSpec& spec) const {
  const auto ranks = static_cast<size_t>(size_);
  TUTTI_CHECK(spec.owned.size() == ranks && spec.offsets.size() == ranks && spec.slices.size() == ranks,
              "reduce bucket {}: a spec for {} ranks in a group of {}", spec.bucket, spec.owned.size(), size_);
  for (size_t r = 0; r < ranks; ++r) {
    TUTTI_CHECK(spec.offsets[r].size() == subtrees(spec.owned[r], spec.lanes).size(),
                "reduce bucket {}: rank {} has {} partials, not one a subtree", spec.bucket, r, spec.offsets[r].size());
    for (int64_t offset : spec.offsets[r]) {
      TUTTI_CHECK(offset % kFloat == 0, "reduce bucket {}: a partial at byte {}", spec.bucket, offset);
    }
  }
  for (const Piece& piece : spec.pieces) {
    TUTTI_CHECK(!piece.src.empty() && piece.src[0] == piece.dst, "reduce bucket {}: a piece without its own gradient",
                spec.bucket);
    for (size_t s = 1; s < piece.src.size(); ++s) {
      TUTTI_CHECK(piece.src[s] >= spec.result_size, "reduce bucket {}: a further gradient inside the result",
                  spec.bucket);
    }
  }
}

/// Everybody begins with another peer, so that no rank is everyone's first.
void DeviceReduction::prepare_exchange(const ReductionSpec& spec, const std::vector<Range>& slices) {
  const SliceRuns mine = runs_of(spec, slices[me_]);
  for (int i = 1; i < size_; ++i) {
    const int peer = (me_ + i) % size_;
    const SliceRuns theirs = runs_of(spec, slices[peer]);
    for (const float* partial : partials_) {
      for (const Run& run : theirs.runs) {
        sends_.push_back({peer, partial + run.floats.begin, static_cast<size_t>(run.floats.size() * kFloat)});
      }
    }
  }
  float* next = reinterpret_cast<float*>(scratch_.data());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == me_) continue;
    for (size_t p = 0; p < spec.offsets[peer].size(); ++p, next += mine.scratch) {
      for (const Run& run : mine.runs) {
        receives_.push_back({peer, next + run.at, static_cast<size_t>(run.floats.size() * kFloat)});
      }
    }
  }
}

/// Scratch lies by rank, then partial, as prepare_exchange() filled it.
void DeviceReduction::prepare_folds(const ReductionSpec& spec, Range slice) {
  const SliceRuns mine = runs_of(spec, slice);
  std::vector<Leaf> leaves;
  const float* next = reinterpret_cast<const float*>(scratch_.data());
  for (int rank = 0; rank < size_; ++rank) {
    const std::vector<Range> trees = subtrees(spec.owned[rank], spec.lanes);
    for (size_t p = 0; p < trees.size(); ++p) {
      leaves.push_back({trees[p], rank == me_ ? partials_[p] : next, rank == me_});
      if (rank != me_) next += mine.scratch;
    }
  }
  std::sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) { return a.lanes.begin < b.lanes.begin; });
  std::vector<Range> ranges;
  for (const Leaf& leaf : leaves) ranges.push_back(leaf.lanes);
  const std::vector<FoldStep> order = fold_order(ranges, {0, spec.lanes});
  for (const SumJob& job : mine.jobs) {
    Fold fold{partials_[0] + job.dst, {}, job.src.size() - 1, job.size};
    for (int64_t src : job.src) {
      for (const Leaf& leaf : leaves) fold.terms.push_back(leaf.at + (leaf.mine ? src : mine.scratch_of(src)));
    }
    while (orders_.size() < job.src.size()) {
      const int count = static_cast<int>(orders_.size()) + 1;
      orders_.push_back(fold_order_of_groups(order, static_cast<int>(leaves.size()), count));
    }
    if (fold.terms.size() > 1) folds_.push_back(std::move(fold));  // one alone is where it should be
  }
}

void DeviceReduction::prepare_gather(const std::vector<Range>& slices) {
  for (int i = 1; i < size_; ++i) {
    const int to = (me_ + i) % size_, from = (me_ + size_ - i) % size_;
    if (const Range& mine = slices[me_]; !mine.empty()) {
      gather_sends_.push_back({to, partials_[0] + mine.begin, static_cast<size_t>(mine.size() * kFloat)});
    }
    if (const Range& theirs = slices[from]; !theirs.empty()) {
      gather_receives_.push_back({from, partials_[0] + theirs.begin, static_cast<size_t>(theirs.size() * kFloat)});
    }
  }
}

/// From left to right, then the further gradients of shared parameters: ring_reduction.cc's order.
void DeviceReduction::prepare_ring(const ReductionSpec& spec) {
  for (size_t p = 1; p < partials_.size(); ++p) {
    additions_.push_back({partials_[0], partials_[p], spec.partial_size});
  }
  for (const SumJob& job : runs_of(spec, {0, spec.result_size}).jobs) {
    for (size_t s = 1; s < job.src.size(); ++s) {
      additions_.push_back({partials_[0] + job.dst, partials_[0] + job.src[s], job.size});
    }
  }
}

void DeviceReduction::reduce(Stream stream) {
  for (const Addition& add : additions_) kernels_.add_into(stream, add.into, add.from, add.size);
  if (kind_ == ReduceKind::kRing) {
    if (size_ > 1 && result_size_ > 0) group_->sum(stream, partials_[0], result_size_);
    return;
  }
  if (!sends_.empty() || !receives_.empty()) group_->exchange(stream, sends_, receives_);
  for (const Fold& fold : folds_) kernels_.fold(stream, fold.out, fold.terms, orders_[fold.order], fold.size);
  if (gather_at_once_ && size_ > 1) group_->exchange(stream, gather_sends_, gather_receives_);
}

void DeviceReduction::gather(Stream stream) {
  if (gather_at_once_ || (gather_sends_.empty() && gather_receives_.empty())) return;
  group_->exchange(stream, gather_sends_, gather_receives_);
}

}  // namespace tutti
