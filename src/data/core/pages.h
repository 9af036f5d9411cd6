// Huge pages for memory that is read at random. On pages of 4 KiB nearly every record costs a walk
// through the page tables.
#pragma once

#include <cstddef>

namespace tutti {

/// Asks for huge pages under [begin, begin + bytes). It is only advice: where the system has none,
/// nothing changes.
void use_huge_pages(const void* begin, size_t bytes);

}  // namespace tutti
