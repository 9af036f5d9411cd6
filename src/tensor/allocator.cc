#include "tensor/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace tutti {

namespace {

// c10 calls an allocator with nothing but a size, so whose bytes they are can only be known by the thread.
thread_local Accounts* current_accounts = nullptr;
thread_local BufferKind current_kind = BufferKind::kWork;

// Lies in the 64 bytes before the memory it describes.
struct Header {
  Accounts* accounts;
  BufferKind kind;
  int64_t bytes;
};
constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

void give_back(void* memory) {
  if (memory == nullptr) return;
  std::byte* begin = static_cast<std::byte*>(memory) - kHeaderBytes;
  Header header;
  std::memcpy(&header, begin, sizeof(header));
  if (header.accounts != nullptr) header.accounts->add(header.kind, -header.bytes);
  std::free(begin);
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    void* begin = nullptr;
    if (posix_memalign(&begin, kHeaderBytes, bytes + kHeaderBytes) != 0)
      throw Error(fmt::format("no memory: ATen asked for {} bytes", bytes));
    const Header header{current_accounts, current_kind, static_cast<int64_t>(bytes)};
    std::memcpy(begin, &header, sizeof(header));
    if (header.accounts != nullptr) header.accounts->add(header.kind, header.bytes);
    void* memory = static_cast<std::byte*>(begin) + kHeaderBytes;
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void install_accounting_allocator() {
  static std::once_flag once;
  // Never deleted: c10 keeps the pointer, and tensors may outlive everything of ours.
  std::call_once(once, [] { c10::SetCPUAllocator(new AccountingAllocator, /*priority=*/1); });
}

AllocationScope::AllocationScope() : outer_accounts_(current_accounts), outer_kind_(current_kind) {
  current_accounts = nullptr;
}

AllocationScope::AllocationScope(Accounts& accounts, BufferKind kind)
    : outer_accounts_(current_accounts), outer_kind_(current_kind) {
  current_accounts = &accounts;
  current_kind = kind;
}

AllocationScope::~AllocationScope() {
  current_accounts = outer_accounts_;
  current_kind = outer_kind_;
}

}  // namespace tutti
