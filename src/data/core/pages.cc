// Advice to the kernel about pages. Failures are ignored: memory on small pages is slower and no
// less right.
#include "data/core/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace tutti {

void use_huge_pages(const void* begin, size_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(begin) + bytes) / kHuge * kHuge;
  if (from >= to) return;

  // Only whole huge pages inside of the range can be advised.
  void* const start = reinterpret_cast<void*>(from);
  (void)madvise(start, to - from, MADV_HUGEPAGE);
#if defined(MADV_COLLAPSE)
  constexpr int kCollapse = MADV_COLLAPSE;
#else
  constexpr int kCollapse = 25;  // Linux 6.1; headers may be older than the kernel
#endif
  // Pages that have been written already are moved at once, not when a daemon finds them.
  (void)madvise(start, to - from, kCollapse);
}

}  // namespace tutti
