#include "data/core/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace tutti {

void use_huge_pages(const void* begin, size_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(begin) + bytes) / kHuge * kHuge;
  if (from >= to) return;
  void* const start = reinterpret_cast<void*>(from);
  (void)madvise(start, to - from, MADV_HUGEPAGE);
#if defined(MADV_COLLAPSE)
  constexpr int kCollapse = MADV_COLLAPSE;
#else
  constexpr int kCollapse = 25;  // Linux 6.1; headers may be older than the kernel
#endif
  // what has been written already moves now, not when a daemon finds it
  (void)madvise(start, to - from, kCollapse);
}

}  // namespace tutti
