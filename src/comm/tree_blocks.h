// How the slices of a sum are cut into blocks, which are folded while later ones still travel, and
// what each member gives of them. Sender and owner number it alike.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/ir/transfers.h"

namespace tutti {

/// A cut of an owner's slice of a unit.
struct SumBlock {
  size_t unit;
  Range floats;
};
/// The blocks that a member's slices are cut into.
std::vector<SumBlock> blocks_of(const SumTransfer& transfer, size_t member);

/// Floats of a block that a rank has in one of its contributions.
struct GivenTerm {
  size_t block, unit, source, term;
  Range floats;
};
/// What `from` gives the owner of slices, block by block.
std::vector<GivenTerm> given(const SumTransfer& transfer, int from, size_t owner);

}  // namespace tutti
