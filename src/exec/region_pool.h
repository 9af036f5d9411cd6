// Keeps account of which parts of given memory regions are in use. It works on addresses alone and
// touches no memory, so it serves any device. Blocks are handed out best fit; what is given back is
// merged with its free neighbours at once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tutti {

/// Not thread-safe. The same sequence of calls gives the same addresses, relative to the regions.
class RegionPool {
 public:
  /// Blocks begin on borders of this many bytes, and their sizes are rounded up to it.
  static constexpr int64_t kStep = 512;

  static int64_t rounded(int64_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

  /// Adds a region of memory that belongs to somebody else, apart from all others, which begins on
  /// a border. What follows its last whole step is not used.
  void add(uintptr_t start, int64_t bytes);
  /// Takes the smallest free block that fits (of equal ones the one at the lowest address), and
  /// leaves the rest of it free. Returns 0 if none fits. `bytes` > 0.
  uintptr_t take(int64_t bytes);
  /// Returns false if no block in use begins there.
  bool give_back(uintptr_t start);

  int64_t reserved() const { return reserved_; }  ///< bytes of all regions
  int64_t in_use() const { return in_use_; }
  int64_t largest_free() const { return free_.empty() ? 0 : free_.rbegin()->first; }
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }  ///< free or in use

 private:
  struct Block {
    int64_t bytes;
    int region;  // blocks of two regions are never merged, even if they touch
    bool free;
  };
  std::map<uintptr_t, Block> blocks_;             // by address; they cover the regions
  std::set<std::pair<int64_t, uintptr_t>> free_;  // (bytes, start)
  int regions_ = 0;
  int64_t reserved_ = 0, in_use_ = 0;
};

}  // namespace tutti
