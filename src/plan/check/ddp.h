// Proves a plan before launch, over the programs of all ranks, assuming nothing is buffered. Returns every fault found,
// each naming rank, queue and instruction; empty means proved:
//   - instructions that meet (reduce, gather, vote, acquire) are equal in order, id and bucket on every rank
//   - no cycle of waits over all queues of all ranks: so no deadlock for any interleaving
//   - every event waited for is signalled, once; every buffer read was written before, in every interleaving
//   - interpreted symbolically, what each Update reads is exactly the job's tree over (lane, micro) gradients
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"
#include "plan/ir/shape.h"

namespace tutti {

std::vector<std::string> check_plan(const Plan& plan, const ModelShape& model, int micro_batches);

/// Bytes per kind that a rank needs at its peak, by the plan's own account.
struct MemoryForecast {
  int64_t bytes[kBufferKinds] = {};
  int64_t total() const;
};
MemoryForecast forecast_memory(const Program& program);

}  // namespace tutti
