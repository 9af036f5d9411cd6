// Blocks cover the regions without gaps, so the neighbours of a block are the entries next to it in
// the map. Free ones are listed by size, too, which makes "best fit" a lookup.
#include "exec/region_pool.h"

#include <iterator>

#include "base/error.h"

namespace tutti {

void RegionPool::add(uintptr_t start, int64_t bytes) {
  bytes = bytes / kStep * kStep;
  TUTTI_CHECK(start != 0 && start % kStep == 0 && bytes > 0, "a region of {} bytes at {:#x}", bytes,
              start);

  // Only its two neighbours in the list of blocks could overlap the region.
  const auto next = blocks_.lower_bound(start);
  TUTTI_CHECK(next == blocks_.end() || start + static_cast<uintptr_t>(bytes) <= next->first,
              "regions overlap");
  TUTTI_CHECK(
      next == blocks_.begin() ||
          std::prev(next)->first + static_cast<uintptr_t>(std::prev(next)->second.bytes) <= start,
      "regions overlap");

  blocks_.emplace(start, Block{bytes, regions_++, true});
  free_.emplace(bytes, start);
  reserved_ += bytes;
}

uintptr_t RegionPool::take(int64_t bytes) {
  TUTTI_CHECK(bytes > 0, "a block of {} bytes", bytes);
  bytes = rounded(bytes);
  const auto found = free_.lower_bound({bytes, 0});
  if (found == free_.end()) return 0;

  // What is left of the block stays a free block of the same region.
  const uintptr_t start = found->second;
  free_.erase(found);
  Block& block = blocks_.at(start);
  if (block.bytes > bytes) {
    const uintptr_t rest = start + static_cast<uintptr_t>(bytes);
    blocks_.emplace(rest, Block{block.bytes - bytes, block.region, true});
    free_.emplace(block.bytes - bytes, rest);
    block.bytes = bytes;
  }

  block.free = false;
  in_use_ += bytes;
  return start;
}

bool RegionPool::give_back(uintptr_t start) {
  auto at = blocks_.find(start);
  if (at == blocks_.end() || at->second.free) return false;
  in_use_ -= at->second.bytes;
  at->second.free = true;

  // Merged at once, so no two free blocks of a region are ever neighbours, and two merges are
  // enough.
  const auto joins = [](const Block& a, const Block& b) {
    return a.free && b.free && a.region == b.region;
  };
  if (const auto next = std::next(at); next != blocks_.end() && joins(at->second, next->second)) {
    free_.erase({next->second.bytes, next->first});
    at->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }

  if (at != blocks_.begin() && joins(std::prev(at)->second, at->second)) {
    const auto before = std::prev(at);
    free_.erase({before->second.bytes, before->first});
    before->second.bytes += at->second.bytes;
    blocks_.erase(at);
    at = before;
  }

  free_.emplace(at->second.bytes, at->first);
  return true;
}

}  // namespace tutti
