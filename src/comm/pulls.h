// Reduce and Gather of a mesh's plan (plan/make/transfers.h): every rank takes what it needs from the others' arenas.
// Where windows reach (inproc, shm) it reads there; elsewhere (tcp, other hosts) those who have it send it. All ranks
// of a transfer run it in the same order and with the same numbers; nothing depends on which way the bytes go.
//
//   sum    1. this rank's contributions are ready; wait for those of the others
//          2. fold my slice of every source by the transfer's LevelSums into my stack; after the last round add the
//             further sources to the first, from left to right
//          3. wait until every owner has taken from me: my contributions may be overwritten when run() returns
//   copy   1. what I hold is ready; wait for those I copy from  2. copy what is mine to have
//          (it may be overwritten after a later meeting of all: the vote)
//
// Steps count up. A unit has four flags: its rounds' sums share two, its copies before and
// after its Update have one each, so all copies of a unit on one side of its Update must be of the same values. On a
// host where one rank has a window all have one that is not empty.
//
// Every failure is a CommError with the transfer's name as its operation and the step as its sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "net/transport.h"
#include "plan/make/transfers.h"

namespace tutti {

enum UnitFlag { kSumReady, kSumTaken, kCopyReady, kUpdatedReady, kUnitFlags };
inline int flag_of(int unit, UnitFlag flag) { return unit * kUnitFlags + flag; }
/// Units that have flags.
inline constexpr int kFlaggedUnits = Transport::kFlags / kUnitFlags;

class SumPull {
 public:
  /// `arena`: this rank's, that transfer offsets count from: the transport's window where it has one. `levels`: my
  /// stack, level_floats() each (empty where I own nothing); with one round, level 0 has just my slice's floats and may
  /// be the slice's place in my own first contribution. `scratch`: scratch_bytes() at least; pulls that never run at
  /// the same time may share it. All must outlive it.
  SumPull(SumTransfer transfer, Transport& transport, std::span<std::byte> arena, std::vector<float*> levels,
          std::span<std::byte> scratch);
  ~SumPull();
  /// `begun` is called once all that this rank gives is ready or under way, before the first wait for another.
  void run(uint64_t step, Deadline deadline, const std::function<void()>& begun = {});
  /// Private memory that rank `rank` needs: for messages where not all ranks of the transfer reach each other's
  /// windows; else for the slice, where others own it too and must have read it before it is overwritten in place.
  static int64_t scratch_bytes(const SumTransfer& transfer, int rank, bool windows);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class CopyPull {
 public:
  /// `targets`: what `at` counts from, by Copy::write; empty where it receives nothing.
  CopyPull(CopyTransfer transfer, Transport& transport, std::span<std::byte> arena,
           const std::vector<std::byte*>& targets);
  ~CopyPull();
  void run(uint64_t step, Deadline deadline, const std::function<void()>& begun = {});  ///< as SumPull's

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
