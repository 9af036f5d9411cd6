// Memory on huge pages. On pages of 4 KiB what is read at random, or far apart (a matmul reads a
// row of a matrix, and so a page, per step), waits for the page tables.
#pragma once

#include <cstddef>

namespace tutti {

/// Asks for huge pages under [begin, begin + bytes), which has not been written yet. Only advice:
/// where the system has none, nothing changes.
void advise_huge_pages(const void* begin, size_t bytes);
/// The same for memory that has been written: it moves now, not when a daemon finds it.
void move_to_huge_pages(const void* begin, size_t bytes);

}  // namespace tutti
