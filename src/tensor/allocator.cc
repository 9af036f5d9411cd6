// The accounting allocator: every block carries a header that says where it was counted, so it can
// be freed by any thread, at any time.
#include "tensor/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

#include "base/error.h"
#include "base/text/message.h"

namespace tutti {

/// Shared by the ledger and every block that was counted into it, so that the last of them, not the
/// ledger, ends it.
class Ledger::State {
 public:
  explicit State(Accounts& accounts) : accounts_(&accounts) {}

  // A block that is freed after close() finds no accounts and has nothing to take off: close() did.
  void add(BufferKind kind, int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (accounts_ == nullptr) return;
    accounts_->add(kind, bytes);
    held_[static_cast<size_t>(kind)] += bytes;
  }
  void close() {
    std::lock_guard lock(mutex_);
    for (int k = 0; k < kBufferKinds; ++k)
      if (held_[k] != 0) accounts_->add(static_cast<BufferKind>(k), -held_[k]);
    accounts_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Accounts* accounts_;
  std::array<int64_t, kBufferKinds> held_{};
};

Ledger::Ledger(Accounts& accounts) : state_(std::make_shared<State>(accounts)) {}
Ledger::~Ledger() { state_->close(); }

namespace {

// c10 passes an allocator nothing but a size, so only the thread can tell whose bytes they are.
thread_local const std::shared_ptr<Ledger::State>* current_ledger = nullptr;
thread_local BufferKind current_kind = BufferKind::kWork;

// Stored in the 64 bytes before the memory that it describes, which thus stays 64-byte aligned.
struct Header {
  std::shared_ptr<Ledger::State> ledger;
  BufferKind kind;
  int64_t bytes;
};
constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

void give_back(void* memory) {
  if (memory == nullptr) return;
  auto* header =
      std::launder(reinterpret_cast<Header*>(static_cast<std::byte*>(memory) - kHeaderBytes));
  if (header->ledger) header->ledger->add(header->kind, -header->bytes);
  header->~Header();
  std::free(header);
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    // No header for an empty tensor: give_back ignores null.
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};

    // SIZE_MAX is tested first, since a wrapped size would be granted.
    void* begin = nullptr;
    if (bytes > SIZE_MAX - kHeaderBytes ||
        posix_memalign(&begin, kHeaderBytes, bytes + kHeaderBytes) != 0)
      throw Error(memory_ran_out(static_cast<double>(bytes)));

    // The kind is that of the thread's scope; without a ledger the header only says that
    // nobody counts.
    auto* header = new (begin) Header{nullptr, current_kind, static_cast<int64_t>(bytes)};
    if (current_ledger != nullptr) {
      header->ledger = *current_ledger;
      header->ledger->add(header->kind, header->bytes);
    }
    void* memory = static_cast<std::byte*>(begin) + kHeaderBytes;
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_accounting_allocator() {
  static std::once_flag once;
  // It is never deleted: c10 keeps the pointer, and tensors may outlive everything of ours.
  std::call_once(once, [] { c10::SetCPUAllocator(new AccountingAllocator, /*priority=*/1); });
}

AllocationScope::AllocationScope() : outer_ledger_(current_ledger), outer_kind_(current_kind) {
  current_ledger = nullptr;
}

AllocationScope::AllocationScope(Ledger& ledger, BufferKind kind)
    : outer_ledger_(current_ledger), outer_kind_(current_kind) {
  current_ledger = &ledger.state_;
  current_kind = kind;
}

AllocationScope::~AllocationScope() {
  current_ledger = outer_ledger_;
  current_kind = outer_kind_;
}

}  // namespace tutti
