// What a Reduce and a Gather of a mesh's plan move: which ranges of whose windows go where. Pure functions of the plan,
// so that the checker, the census of bytes and comm/pulls.h mean the same thing.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/make/mesh.h"

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
  uint32_t id = 0;            ///< of the instruction
  std::string name;           ///< "reduce unit 3 round 0"
  std::vector<int> ranks;     ///< all that take part, ascending: those that contribute and those that own
  std::vector<Range> slices;  ///< by member of ranks: what it owns of the unit; empty: nothing
  std::vector<SumSource> sources;
  std::vector<LevelSum> sums;
  int unit = 0, round = 0, rounds = 1;
  int levels = 1;         ///< of an owner's stack
  bool by_hosts = false;  ///< two rounds of other ranks each: first the sum of every host, then the sum of these
  bool last() const { return round + 1 == rounds; }
  /// Whether nothing is kept from round to round: then a sum may lie on a contribution to it.
  bool in_place() const { return rounds == 1 || by_hosts; }
};
SumTransfer sum_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                         const Instruction& reduce);

/// Floats of one level of an owner's stack: its slice, then its part of every further source, where sums take more than
/// one round.
int64_t level_floats(const SumTransfer& transfer, int member);

/// Floats from the start of what a rank's Reduce writes to its slice there: in place it lies where it does in the unit.
int64_t slice_offset(const SumTransfer& transfer, const Instruction& reduce, int rank);

/// Ranges that travel in a Gather.
struct CopyTransfer {
  uint32_t id = 0;
  std::string name;  ///< "gather parameters of unit 3"
  int unit = 0;
  bool updated = false;    ///< it comes behind the unit's Update in the step
  std::vector<int> ranks;  ///< ascending
  struct Copy {
    int from = 0, to = 0;  ///< ranks
    int64_t offset = 0;    ///< bytes in from's window
    int64_t at = 0;        ///< bytes from the start of to's buffer
    int64_t bytes = 0;
    int write = 0;  ///< which of to's `writes`: copies of shared parameters lie in one buffer for each block
  };
  std::vector<Copy> copies;  ///< from == to where a rank copies its own
};
CopyTransfer copy_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                           const Instruction& gather);

/// What data coordinate d of a unit's home owns of it. Without ZeRO the reduced gradient is still cut, over all data
/// ranks.
Range owned_slice(const MeshPlaces& places, int unit, int data);

/// The same functions for many instructions of one plan, which must outlive it, as must the model. An instruction whose
/// partners are missing, or whose buffers do not hold what they should, is an Error that says so.
class Transfers {
 public:
  Transfers(const Plan& plan, const ModelShape& model, const MeshOptions& options);
  SumTransfer sum(const Instruction& reduce) const;
  CopyTransfer copy(const Instruction& gather) const;
  const MeshPlaces& places() const { return places_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  /// The instruction of that id in a rank's program; null: it has none.
  const Instruction* find(int rank, uint32_t id) const;
  /// Shares of `unit` in the blocks that run at a rank's place, in block order.
  std::vector<Share> shares_at(int rank, int unit) const;
  /// What of a unit's parameters a buffer of the rank holds: floats of the unit, and where in gradient space the buffer
  /// has them (a copy of shared parameters lies where their gradients do).
  std::vector<std::pair<Range, int64_t>> pieces_of(const Buffer& target, int unit, int rank) const;
  const std::vector<int>& members(const Instruction& instruction) const;

 private:
  Range slice_at(int rank, int unit) const;
  Round round_of(const Instruction& reduce) const;
  SumSource source(const Instruction& reduce, const Round& round, Range to, int64_t from, Coordinates home) const;
  void copy_into(CopyTransfer& transfer, const Instruction& own, int rank, int write) const;
  bool follows_update(int rank, const Instruction& gather) const;

  const Plan& plan_;
  const ModelShape& model_;
  MeshOptions options_;
  MeshPlaces places_;
  std::vector<Round> rounds_;
  std::vector<int> all_;
  using Spot = std::pair<int, int>;                        // queue and index
  std::vector<std::unordered_map<uint32_t, Spot>> by_id_;  // by rank
  std::vector<std::vector<Spot>> signalled_by_;            // by rank and event
};

/// Bytes of a tensor of one column that a member brings to an Exchange: a gradient goes the other way, partial sums of
/// what was gathered, or parts of what was scattered.
int64_t exchanged_bytes(const OutputShape& output, const Instruction& exchange);

/// Payload bytes that a rank sends another in a step, or that the other reads in its window: [from][to].
using LinkBytes = std::vector<std::vector<int64_t>>;
LinkBytes link_bytes(const Plan& plan, const ModelShape& model, const MeshOptions& options);
int64_t link_bytes(const Plan& plan, const ModelShape& model, const MeshOptions& options, int from, int to);

}  // namespace tutti
