// Where gradients lie on a rank and how their buckets are reduced: the part that is the same on the host and on a
// device.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/reduction.h"
#include "config/job.h"
#include "grid/grid.h"
#include "plan/program.h"
#include "plan/shape.h"

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

/// Bytes of a program's gradient buffers that no other rank reads, each begun on a 256-byte border.
int64_t private_gradient_bytes(const Program& program);

}  // namespace tutti
