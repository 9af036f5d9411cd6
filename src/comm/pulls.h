// Reduce and Gather of a plan (plan/ir/transfers.h): every rank takes what it needs from the
// others' arenas. Where windows reach (inproc, shm) it reads there; elsewhere (tcp, other hosts)
// those who have it send it. All ranks of a transfer run it in the same order and with the same
// numbers; nothing depends on which way the bytes go.
//
//   sum    1. this rank's contributions are ready; wait for those of the others 2. fold my slices
//          of every source by the transfer's LevelSums into my stacks; after the last round add the
//             further sources to the first, from left to right
//          3. wait until every owner has taken from me: when run() returns, all slices are made,
//             and my contributions may be overwritten, but for my slices in them
//          With Return::kBlocks a finished block goes to all other members at once, while later
//          ones still arrive
//   copy   1. what I hold is ready; wait for those I copy from  2. copy what is mine to have
//          (it may be overwritten after a later meeting of all: the vote)
//
// Steps count up. A parcel has flags of its own (plan/ir/tags.h): one each for its copies before and
// after its Updates, so all copies of a parcel on one side of its Updates must be of the same
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

static_assert(kWindowFlags <= Transport::kFlags);

/// What a transfer goes by: the id of its instructions, which its messages carry, the parcel whose
/// flags it raises, and what people call it.
struct TransferName {
  uint32_t id = 0;
  int parcel = 0;
  std::string text;  ///< "reduce parcel 3 round 0"
};

/// Where a rank makes its slice of a unit's sum in a Reduce, level by level: in place, in what it
/// adds to it, or in a buffer of its own. `floats`: where a buffer of its program is.
std::vector<float*> levels_of(const Plan& plan, const Instruction& reduce, const UnitSum& unit,
                              int rank, const std::function<float*(int buffer)>& floats);

class SumPull {
 public:
  virtual ~SumPull() = default;
  /// `begun` is called once all that this rank gives is ready or under way, before the first wait
  /// for another.
  virtual void run(uint64_t step, Deadline deadline, const std::function<void()>& begun = {}) = 0;
  /// Private memory that rank `rank` needs: for messages where not all ranks of the transfer reach
  /// each other's windows; else for slices that others own, too, and must have read before they are
  /// overwritten in place.
  static int64_t scratch_bytes(const SumTransfer& transfer, int rank, bool windows);
};
/// `arena`: this rank's, that transfer offsets count from: the transport's window where it has one.
/// `levels`: by unit my stack, level_floats() each (empty where I own nothing); with one round, or
/// by hosts, a level has just my slice's floats and may be the slice's place in one of my own terms
/// of it. `scratch`: scratch_bytes() at least; sums that never run at the same time may share it.
/// All must outlive it.
std::unique_ptr<SumPull> make_sum_pull(const SumTransfer& transfer, TransferName name,
                                       Transport& transport, std::span<std::byte> arena,
                                       std::vector<std::vector<float*>> levels,
                                       std::span<std::byte> scratch);

class CopyPull {
 public:
  /// `memory(buffer)`: where a buffer lies that this rank writes.
  CopyPull(const CopyTransfer& transfer, TransferName name, Transport& transport,
           std::span<std::byte> arena, const std::function<std::byte*(int buffer)>& memory);
  ~CopyPull();
  /// as SumPull's
  void run(uint64_t step, Deadline deadline, const std::function<void()>& begun = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
