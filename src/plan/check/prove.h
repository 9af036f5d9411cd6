// Proves the programs of a mesh before launch, over all ranks, assuming that nothing is buffered.
// Returns every fault found, each naming rank, queue and instruction; empty means proved:
//   - every send has its receive (id, peer, bytes); instructions that meet are equal on all members
//     of their group
//   - there is no circle of waits over all queues of all ranks: so no deadlock in any interleaving
//   - conflicting accesses of every buffer are ordered, also those of other ranks that read
//     windows, and those from one step to the next: so no race
//   - interpreted symbolically, every Forward and Backward finds the values that the model says and
//     is done once; what each Update reads is exactly the job's sum over (lane, micro) gradients;
//     every element's square is counted once; all ranks' parameters are new when the step ends
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

std::vector<std::string> prove(const Plan& plan, const ModelShape& model);

}  // namespace tutti
