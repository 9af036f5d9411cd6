// Who holds which elements of the state, and how they get from one layout to another. Pure
// functions of values: loading, saving and moving state between layouts go by them, and know
// nothing of meshes.
//
//   entry     one parameter's values in one slot, whole (state/state.h)
//   holding   a range of an entry's elements that a rank has
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"
#include "state/state.h"

namespace tutti {

/// Where an entry's values come from in a model's units.
struct EntryPlace {
  EntryShape shape;
  int unit = 0;
  int slot = -1;         ///< of the optimizer; -1: the parameters
  size_t parameter = 0;  ///< of the unit
  Range floats;          ///< of the unit
  Commit commit = Commit::kInPlace;
};
/// In model order, slots of a parameter together; the same for every layout. A shared parameter is
/// its owner's alone.
std::vector<EntryPlace> entry_places(const ModelShape& shape,
                                     const std::vector<std::string>& slots);

struct Holding {
  size_t entry = 0;
  Range range;  ///< elements
  bool operator==(const Holding&) const = default;
};
/// By rank; each list ascending.
using Holdings = std::vector<std::vector<Holding>>;
Holdings holdings_of(const std::vector<EntryPlace>& entries, const Plan& plan);
/// One rank of several has everything.
Holdings held_by_one(const std::vector<EntryShape>& entries, int rank, int ranks);

struct Move {
  size_t entry = 0;
  Range range;           ///< elements
  int from = 0, to = 0;  ///< ranks; the same where it stays
  bool operator==(const Move&) const = default;
};
/// What every rank of `to` takes to have all that it should, each element once and in the order of
/// entries: its own where it has it, else another's; those who hold the same take turns. Throws
/// Error where nobody holds an element that is wanted.
std::vector<Move> moves(const Holdings& from, const Holdings& to);

}  // namespace tutti
