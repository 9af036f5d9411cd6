// Accounts for ATen's own allocations: a CPU allocator, registered with c10, that counts every
// block into the Ledger that the calling thread has named.
#pragma once

#include <memory>

#include "exec/accounts.h"

namespace tutti {

/// Makes the accounting allocator ATen's CPU allocator, for the rest of the process. Calling it
/// again does nothing. Memory is 64-byte aligned.
void install_accounting_allocator();

/// Books what ATen holds in an Accounts, which must outlive it. Tensors may outlive the ledger (a
/// module may keep a mask): what they hold counts as given back when the ledger ends, and is not
/// counted after that. Thread-safe.
class Ledger {
 public:
  explicit Ledger(Accounts& accounts);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  class State;

 private:
  friend class AllocationScope;
  std::shared_ptr<State> state_;
};

/// While it lives, what ATen allocates on this thread counts into `ledger` under `kind`, and is
/// taken off there when it is freed, by whichever thread. Scopes nest; outside of any scope nothing
/// is counted. The ledger must outlive the scope.
class AllocationScope {
 public:
  AllocationScope();  ///< counts nothing, whatever is around it
  AllocationScope(Ledger& ledger, BufferKind kind);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

 private:
  const std::shared_ptr<Ledger::State>* outer_ledger_;
  BufferKind outer_kind_;
};

}  // namespace tutti
