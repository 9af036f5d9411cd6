// The phase of the generator that works out what Reduces and Gathers move, once all ranks' programs
// are there. A transfer is read off the instructions that have one id, on all ranks of its group:
// one that reads a buffer there offers it, one that writes a buffer takes. The layout says the
// rest: which data ranks contribute, in which order, and who owns which slice.
#pragma once

#include "plan/make/plan_mesh.h"

namespace tutti {

/// Fills in plan.sums and plan.copies, and names them in the instructions. If an instruction's
/// partners are missing, or its buffers do not hold what they should, it throws an Error that says
/// so: the generator's fault.
void add_transfers(Plan& plan, const ModelShape& model, const MeshOptions& options,
                   const MeshPlaces& places);

}  // namespace tutti
