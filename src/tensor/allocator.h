// ATen's own allocations, accounted: a CPU allocator registered with c10 that counts into the
// Ledger that the calling thread has named.
#pragma once

#include <memory>

#include "exec/accounts.h"

namespace tutti {

/// Makes the accounting allocator ATen's CPU allocator, for the rest of the process. Calling it
/// again does nothing. Memory is 64-byte aligned.
void install_accounting_allocator();

/// Carries what ATen holds into an Accounts, which must outlive it. Tensors may outlive the ledger
/// (a module that keeps a mask): what they hold counts as given back when the ledger ends, and no
/// more after that. Thread-safe.
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

/// While it lives, what ATen allocates on this thread counts into `ledger` under `kind`, and goes
/// back from there when it is freed, by whichever thread. Scopes nest. Outside of any scope nothing
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
