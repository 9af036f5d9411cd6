// A release is a counter of the borrower: in step s it is raised to s + 1. The lender waits for the
// counters of its borrowers, so a release costs no message.
#include "comm/lending.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/posted.h"
#include "comm/pulls.h"

namespace tutti {

Lending::Lending(const Plan& plan, int rank, Transport& transport)
    : transport_(transport), borrowers_(plan.parcels.size()) {
  // A program borrows a unit from this rank if one of its operands is in this rank's memory.
  const auto borrows = [&](const Program& program, int unit) {
    for (const Queue& queue : program.queues)
      for (const Instruction& i : queue.instructions)
        for (const Operand& operand : i.operands)
          if (operand.rank == rank && operand.unit == unit) return true;
    return false;
  };

  // Only parcels that this rank acquires matter: it lends no others.
  for (const Queue& queue : plan.programs[static_cast<size_t>(rank)].queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op != Op::kAcquire) continue;
      for (const Program& program : plan.programs) {
        const Parcel& parcel = plan.parcels[static_cast<size_t>(i.parcel)];
        if (std::any_of(parcel.begin(), parcel.end(),
                        [&](const UnitRange& part) { return borrows(program, part.unit); }))
          borrowers_[static_cast<size_t>(i.parcel)].push_back(program.rank);
      }
    }
}

void Lending::acquire(int parcel, uint64_t step, Deadline deadline) {
  // Before the first step nobody has borrowed anything.
  if (step == 0) return;
  const std::string name = fmt::format("acquire parcel {}", parcel);
  named(name, step, [&] {
    for (int peer : borrowers_[static_cast<size_t>(parcel)])
      transport_.await(peer, flag_of(parcel, kReleased), step, deadline, name);
  });
}

void Lending::release(int parcel, uint64_t step) {
  transport_.raise(flag_of(parcel, kReleased), step + 1);
}

}  // namespace tutti
