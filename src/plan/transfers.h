// What a Reduce and a Gather of a mesh's plan move: which ranges of whose windows go where. Pure functions of the plan,
// so that the checker, the census of bytes and comm/pulls.h mean the same thing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/mesh.h"

namespace tutti {

/// One of the sums of a Reduce: what a unit's own gradient or a further user's gradient of a shared parameter adds.
struct SumSource {
  Range to;  ///< floats of the unit that it adds to; of the first source: all of them
  struct Term {
    int rank = 0;
    int64_t offset = 0;  ///< bytes in the rank's window: where the float for to.begin lies
  };
  std::vector<Term> terms;  ///< by contribution of the round
};

/// A round of a unit's sum: every owner makes its slice, for every source, by the same additions; after the last round
/// the sources' sums are added from left to right.
struct SumTransfer {
  uint32_t id = 0;           ///< of the instruction
  std::string name;          ///< "reduce unit 3 round 0"
  std::vector<int> ranks;    ///< all that take part, ascending: those that contribute and those that own
  std::vector<Range> slices;  ///< by member of ranks: what it owns of the unit; empty: nothing
  std::vector<SumSource> sources;
  std::vector<LevelSum> sums;
  int unit = 0, round = 0, rounds = 1;
  int levels = 1;  ///< of an owner's stack
  bool last() const { return round + 1 == rounds; }
};
SumTransfer sum_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                         const Instruction& reduce);

/// Floats of one level of an owner's stack: its slice, then its part of every further source, where sums take more than
/// one round.
int64_t level_floats(const SumTransfer& transfer, int member);

/// Ranges that travel in a Gather.
struct CopyTransfer {
  uint32_t id = 0;
  std::string name;         ///< "gather parameters of unit 3"
  int unit = 0;
  bool updated = false;     ///< it comes behind the unit's Update in the step
  std::vector<int> ranks;   ///< ascending
  struct Copy {
    int from = 0, to = 0;  ///< ranks
    int64_t offset = 0;    ///< bytes in from's window
    int64_t at = 0;        ///< bytes from the start of to's buffer
    int64_t bytes = 0;
  };
  std::vector<Copy> copies;  ///< from == to where a rank copies its own
};
CopyTransfer copy_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                           const Instruction& gather);

/// Payload bytes that rank `from` sends `to` in a step, or that `to` reads in from's window.
int64_t link_bytes(const Plan& plan, const ModelShape& model, const MeshOptions& options, int from, int to);

}  // namespace tutti
