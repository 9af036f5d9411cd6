// The Reduce and Gather of a plan (plan/ir/transfers.h), which are a reduce-scatter and an
// all-gather of ranges. Every rank takes what it needs from the others' arenas. Where windows reach
// (inproc, shm) it reads there (one-sided); elsewhere (tcp, other hosts) those who have it send it.
// All ranks of a transfer run it in the same order and with the same numbers; nothing depends on
// which way the bytes go.
//
//   sum    1. This rank's contributions are ready; it waits for those of the others.
//          2. It folds its slices of every source into its stacks, by the transfer's LevelSums.
//             After the last round it adds the further sources to the first, from left to right.
//          3. It waits until every owner has taken from it. When run() returns, all slices are
//             made, and its contributions may be overwritten, but for its own slices in them.
//          With Return::kBlocks a finished block is sent to all other members at once, while later
//          ones still arrive.
//   copy   1. What this rank holds is ready; it waits for those it copies from.
//          2. It copies what it is to have. Nobody waits for those who copy: what they read may be
//             overwritten only after a later meeting of all ranks, which is the vote.
//
// Steps count up. A parcel has flags of its own (plan/ir/tags.h): one each for its copies before
// and after its Updates, so all copies of a parcel on one side of its Updates must be of the same
// values. On a host where one rank has a window all have one that is not empty.
//
// Every failure is a CommError with the transfer's name as its operation and the step as its
// sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/transport.h"
#include "plan/ir/program.h"
#include "plan/ir/tags.h"

namespace tutti {

/// How a transfer is known: the id of its instructions, which its messages carry; the parcel whose
/// flags it raises; and its name in errors.
struct TransferName {
  uint32_t id = 0;
  int parcel = 0;
  std::string text;  ///< "reduce parcel 3 round 0"
};

/// Where a rank makes its slice of a unit's sum in a Reduce, level by level: in place, in one of
/// the contributions, or in a buffer of its own. `floats` says where a buffer of its program is in
/// memory.
std::vector<float*> levels_of(const Plan& plan, const Instruction& reduce, const UnitSum& unit,
                              int rank, const std::function<float*(int buffer)>& floats);

class SumPull {
 public:
  virtual ~SumPull() = default;
  /// `begun` is called once all that this rank gives is ready or under way, before it first waits
  /// for another rank.
  virtual void run(uint64_t step, const Patience& patience,
                   const std::function<void()>& begun = {}) = 0;
  /// Bytes of private memory that rank `rank` needs. Where not all ranks of the transfer reach each
  /// other's windows it takes the messages that arrive; elsewhere it takes sums of slices that
  /// others own, too, and must have read before they are overwritten in place.
  static int64_t scratch_bytes(const SumTransfer& transfer, int rank, bool windows);
};
/// `arena`: this rank's memory that the offsets of the transfer count from, which is the
/// transport's window where it has one. `levels`: by unit this rank's stack,
/// level_floats() each (empty where it owns nothing). With one round, or by hosts, a level
/// has just the floats of its slice, and may be the slice's place in one of its own terms.
/// `scratch`: at least scratch_bytes(); sums that never run at the same time may share it.
/// All of these must outlive the result.
std::unique_ptr<SumPull> make_sum_pull(const SumTransfer& transfer, TransferName name,
                                       Transport& transport, std::span<std::byte> arena,
                                       std::vector<std::vector<float*>> levels,
                                       std::span<std::byte> scratch);

class CopyPull {
 public:
  /// `memory(buffer)`: where a buffer that this rank writes begins.
  CopyPull(const CopyTransfer& transfer, TransferName name, Transport& transport,
           std::span<std::byte> arena, const std::function<std::byte*(int buffer)>& memory);
  ~CopyPull();
  /// Runs it once; `begun` as for a SumPull.
  void run(uint64_t step, const Patience& patience, const std::function<void()>& begun = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
