// The DDP generator: every rank holds the whole model and runs its lanes; buckets of units are reduced as soon as their
// last gradient exists; every rank updates everything.
#pragma once

#include "plan/ir/program.h"
#include "plan/ir/shape.h"

namespace tutti {

struct DdpOptions {
  int ranks = 1, lanes = 1, micro_batches = 1;
  bool overlap = true;  ///< comm on a queue of its own; false: the same instructions on compute, after backward
  int64_t bucket_floats = 1 << 20;  ///< units are merged until a bucket has this many
  int optimizer_slots = 2;          ///< moments per parameter (for the memory forecast)
  int64_t data_bytes = 0;           ///< one micro-batch of input
};

/// Gradient buffers follow the fold stack (grid.h): position p of the stack is partial p where p < number of the rank's
/// maximal subtrees (lies in the window), private otherwise. A lane that is folded away as soon as it completes
/// (micro_batches = 1), and every micro-batch but a lane's first, writes its unit into scratch instead. All units share
/// one scratch, but those that other blocks write into (shared parameters) have their own.
Plan plan_ddp(const ModelShape& model, const DdpOptions& options);

}  // namespace tutti
