// Only whole huge pages inside a range can be advised, so small ranges are left alone.
#include "base/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace tutti {

namespace {

/// The huge pages that are within [begin, begin + bytes).
struct HugePages {
  HugePages(const void* begin, size_t bytes) {
    constexpr uintptr_t kHuge = uintptr_t{2} << 20;
    const uintptr_t from = (reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge;
    const uintptr_t to = (reinterpret_cast<uintptr_t>(begin) + bytes) / kHuge * kHuge;
    if (from >= to) return;
    start = reinterpret_cast<void*>(from);
    size = to - from;
  }
  void advise(int advice) const {
    if (size > 0) (void)madvise(start, size, advice);
  }

  void* start = nullptr;
  size_t size = 0;
};

#if defined(MADV_COLLAPSE)
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; headers may be older than the kernel
#endif

}  // namespace

void advise_huge_pages(const void* begin, size_t bytes) {
  HugePages(begin, bytes).advise(MADV_HUGEPAGE);
}

void move_to_huge_pages(const void* begin, size_t bytes) {
  advise_huge_pages(begin, bytes);
  // The memory must have been written already: the move would otherwise take all of it at once.
  HugePages(begin, bytes).advise(kCollapse);
}

}  // namespace tutti
