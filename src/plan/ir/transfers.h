// What a Reduce and a Gather of a plan move: which ranges of whose windows go where. Transfers are
// data of the plan, made once by the generator, so that the checker, the count of bytes and those
// who carry them out (comm/pulls.h, device/device_transfers.h) mean the same thing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grid/mesh.h"

namespace tutti {

/// Floats of a unit.
struct UnitRange {
  int unit = 0;
  Range range;
  bool operator==(const UnitRange&) const = default;
};
/// What travels together (DDP's gradient bucket): small units are merged, in the order in which
/// backward completes them.
using Parcel = std::vector<UnitRange>;

/// One of the gradients that make up a unit's sum: its own, or that of a further user of
/// a shared parameter.
struct SumSource {
  Range to;  ///< floats of the unit that it adds to; the first source: all of them
  struct Term {
    int rank = 0;
    int64_t offset = 0;  ///< bytes in the rank's window: where the float for to.begin is
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;  ///< by contribution of the round
  bool operator==(const SumSource&) const = default;
};

/// A unit's part of a sum.
struct UnitSum {
  int unit = 0;
  /// By member of SumTransfer::ranks: what it makes of the unit; empty: nothing.
  std::vector<Range> slices;
  std::vector<SumSource> sources;
  bool operator==(const UnitSum&) const = default;
};

/// How the sums that a member has made come to the others.
enum class Return : uint8_t {
  kNone,  ///< they do not, or a Gather takes them, or others borrow them where they are
  /// Every block goes to all other members as soon as it is made, into its place in their first
  /// term. Reduce is an all-reduce then.
  kBlocks,
};

/// A round of a parcel's sum: every owner makes its slices, for every source, by the same
/// additions. After the last round the sources' sums are added from left to right.
struct SumTransfer {
  /// All that take part, ascending: those that contribute and those that own.
  std::vector<int> ranks;
  std::vector<UnitSum> units;  ///< of the parcel, in its order
  std::vector<LevelSum> sums;
  int round = 0, rounds = 1;
  int levels = 1;  ///< of an owner's stack (LevelSum in grid/mesh.h)
  /// Two rounds among different ranks: first the sum of every host, then the sum of these
  /// (a hierarchical reduction).
  bool by_hosts = false;
  bool ordered = true;  ///< false: the terms may be added in any order (numerics.reduce = "ring")
  Return returned = Return::kNone;
  bool last() const { return round + 1 == rounds; }
  /// Whether nothing is kept from round to round: then a sum may overwrite one of its terms.
  bool in_place() const { return rounds == 1 || by_hosts; }
  bool operator==(const SumTransfer&) const = default;
};

/// The place of a rank among those that take part in a sum. Asking for one that does not is
/// a broken promise.
size_t member_of(const SumTransfer& transfer, int rank);
/// Floats of one level of an owner's stack for a unit: its slice and, if sums take more than one
/// round, its part of every further source after it.
int64_t level_floats(const SumTransfer& transfer, const UnitSum& unit, int member);

/// Ranges that travel in a Gather.
struct CopyTransfer {
  bool updated = false;    ///< it comes after the units' Updates in the step
  bool gradients = false;  ///< it moves gradients, not parameters
  std::vector<int> ranks;  ///< ascending
  struct Copy {
    int from = 0, to = 0;  ///< ranks
    int64_t offset = 0;    ///< bytes in from's window
    int buffer = 0;        ///< of to's program
    int64_t at = 0;        ///< bytes from the buffer's start
    int64_t bytes = 0;
    bool operator==(const Copy&) const = default;
  };
  std::vector<Copy> copies;  ///< from == to if a rank copies its own values
  bool operator==(const CopyTransfer&) const = default;
};

}  // namespace tutti
