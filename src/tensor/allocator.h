// ATen's own allocations, accounted: a CPU allocator registered with c10 that counts into the Accounts that the calling
// thread has named.
#pragma once

#include "exec/memory.h"

namespace tutti {

/// Makes the accounting allocator ATen's CPU allocator, for the rest of the process. Calling it again does nothing.
/// Memory is 64-byte aligned.
void install_accounting_allocator();

/// While it lives, what ATen allocates on this thread counts into `accounts` under `kind`, and goes back from there
/// when it is freed, by whichever thread. Scopes nest. Outside of any scope nothing is counted. `accounts` must outlive
/// every tensor made in the scope.
class AllocationScope {
 public:
  AllocationScope();  ///< counts nothing, whatever is around it
  AllocationScope(Accounts& accounts, BufferKind kind);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

 private:
  Accounts* outer_accounts_;
  BufferKind outer_kind_;
};

}  // namespace tutti
