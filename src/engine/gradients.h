// Where gradients lie on a rank and how their buckets are reduced: the part that is the same on the host and on a
// device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/reduction.h"
#include "config/job.h"
#include "exec/memory.h"
#include "grid/grid.h"
#include "plan/ir/program.h"
#include "plan/ir/shape.h"

namespace tutti {

/// A partial of a rank holds the partial sums of all buckets, one after another.
struct GradientPlaces {
  std::vector<int> bucket_of;             ///< by unit; -1: it has no parameters
  std::vector<int64_t> offset_in_bucket;  ///< by unit, floats
  std::vector<int64_t> bucket_start;      ///< by bucket, floats from a partial's start
  int64_t partial_floats = 0;

  /// Floats from the start of a partial.
  int64_t of_unit(int unit) const { return bucket_start[bucket_of[unit]] + offset_in_bucket[unit]; }
};
GradientPlaces gradient_places(const Plan& plan, const ModelShape& shape);

/// How many partials a rank keeps where others read them.
int64_t partials_of(int rank, const Plan& plan);

/// What reduces bucket `bucket` among all ranks.
ReductionSpec reduction_spec(const Plan& plan, const ModelShape& shape, const GradientPlaces& places, int bucket,
                             const Job& job);

/// Where the gradient buffers of a rank's program lie: partials in memory that others may read, the rest in an arena of
/// its own.
class GradientMemory {
 public:
  /// `partials` is window_bytes_of() large and must outlive it, as must program, places and source (null: the host).
  GradientMemory(const Program& program, const GradientPlaces& places, float* partials, Accounts& accounts,
                 MemorySource* source = nullptr);
  float* of(int buffer, int unit) const;
  /// By unit, where an instruction's backward writes; what it does not write keeps its last place.
  std::span<float* const> of_backward(const Instruction& instruction);

 private:
  const Program& program_;
  const GradientPlaces& places_;
  float* partials_;
  Arena arena_;
  std::vector<float*> private_;  // by buffer; null: a partial, or no gradient
  std::vector<float*> by_unit_;
};

}  // namespace tutti
