// Checks that the ranks mean the same. At every instruction of a program where ranks meet (Reduce,
// Gather, Exchange, Vote, Send and Recv) a rank tells the next one what it is about to do, and
// hears it from the one before it. A rank whose program went another way is found by the first rank
// that waits for it, at once and by name, not by a time-out.
//
//   group     who meets; a member tells the next one in the ring of its ranks. A sender tells its
//             receiver
//   stream    what one rank tells another on one queue, in order. Its records are numbered by
//             themselves, never by the instruction, so that what differs arrives and is compared
//
// Telling does not wait for the others to come. Hearing waits for the previous rank to come to the
// meeting; if it is done between a meeting's own posts and its first wait, nothing is waited for
// that the meeting does not wait for anyway.
#pragma once

#include <cstdint>
#include <memory>

#include "net/transport.h"
#include "plan/ir/program.h"
#include "plan/ir/tags.h"

namespace tutti {

class RollCall {
 public:
  /// `operations`: its own on its transport, kChannelOperations of them. The queues of a program
  /// run on threads of their own; instructions of one queue are told and heard one after another.
  RollCall(const Plan& plan, int rank, Transport& transport, Clock& clock,
           const Operations& operations);
  /// Gives what is still under way a second to end, then breaks it off; the transport fails with
  /// it.
  ~RollCall();

  /// `step` is as people count it, and part of what is compared. It may wait until what was told
  /// before on the same stream has left.
  void tell(const Instruction& instruction, uint64_t step, const Patience& patience);
  /// To be called after tell(). Hears this instruction and what was told on its stream before and
  /// not yet heard. Throws an Error that names both instructions, ranks, queue and step when they
  /// are not the same, and a CommError when nothing comes.
  void hear(const Instruction& instruction, const Patience& patience);
  /// Throws again what hear() has found, if it has: the cause itself, where other failures have
  /// followed from it.
  void rethrow() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
