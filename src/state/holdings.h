// Who holds which elements of the state, and how they get from one layout to another (resharding).
// These are pure functions of values: loading, saving and moving state between layouts go by them,
// and know nothing of meshes.
//
//   entry     one parameter's values in one slot, whole (state/state.h)
//   holding   a range of an entry's elements that a rank has
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"
#include "state/state.h"

namespace tutti {

/// Where the values of an entry are in the units of a model.
struct EntryPlace {
  EntryShape shape;
  int unit = 0;
  int slot = -1;         ///< a slot of the optimizer; -1: the parameters
  size_t parameter = 0;  ///< its number in the unit
  Range floats;          ///< its floats in the unit
  Commit commit = Commit::kInPlace;
};
/// Entries are in model order, with the slots of a parameter together; the same for every layout. A
/// shared parameter is listed once, at its owner.
std::vector<EntryPlace> entry_places(const ModelShape& shape,
                                     const std::vector<std::string>& slots);

struct Holding {
  size_t entry = 0;
  Range range;  ///< elements
  bool operator==(const Holding&) const = default;
};
/// The holdings of every rank; each list is ascending.
using Holdings = std::vector<std::vector<Holding>>;
/// Who holds what by the ownership that the plan lists.
Holdings holdings_of(const std::vector<EntryPlace>& entries, const Plan& plan);

/// A range of an entry that one rank takes from another, or from itself.
struct Move {
  size_t entry = 0;
  Range range;           ///< elements
  int from = 0, to = 0;  ///< ranks; the same where it stays
  bool operator==(const Move&) const = default;
};
/// What every rank takes to have all that `to` says, each element once and in the order of
/// the entries. A rank takes its own elements where it has them, and else those of another
/// rank; ranks that hold the same take turns in giving. Throws Error where nobody holds an
/// element that is wanted.
std::vector<Move> moves(const Holdings& from, const Holdings& to);

}  // namespace tutti
