// What a rank lets others read in its window after the end of a sum. An Update that borrows reads
// there until its rank releases the parcel, and the lender acquires the parcel before it writes
// there again, in the next step.
#pragma once

#include <cstdint>
#include <vector>

#include "net/transport.h"
#include "plan/ir/program.h"

namespace tutti {

class Lending {
 public:
  /// The operands of the plan say who borrows from this rank.
  Lending(const Plan& plan, int rank, Transport& transport);
  /// Waits until everyone that borrowed from this rank in step `step` - 1 has released the parcel.
  void acquire(int parcel, uint64_t step, Deadline deadline);
  /// This rank has read what it borrowed in this step.
  void release(int parcel, uint64_t step);

 private:
  Transport& transport_;
  std::vector<std::vector<int>> borrowers_;  // by parcel
};

}  // namespace tutti
