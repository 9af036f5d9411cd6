// ATen's allocator on the GPU: it hands out blocks of regions that were reserved ahead, so that a
// steady step allocates nothing.
//
// What ATen gives back is free at once, while kernels that use it may still be waiting on the
// stream: all that is put on one stream runs in order, so whoever gets the block next comes after
// them. That holds only within a stream: each stream's blocks come from regions of its own, and a
// tensor must be used only on the stream that was current when it was made. A captured step uses
// its temporaries' addresses again at every launch, so a tensor that ATen makes outside the step
// must not be held over a launch (arrays that live longer than a step belong in an arena).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/cuda_memory.h"
#include "exec/device.h"
#include "exec/region_pool.h"

namespace tutti {

/// Thread-safe. Its regions are never given back, since ATen frees tensors until the process
/// has ended.
class AtenPool {
 public:
  /// It grows by multiples of this many bytes.
  static constexpr int64_t kGrowth = int64_t{64} << 20;
  static constexpr const char* kHolder = "ATen's temporaries";

  explicit AtenPool(GpuMemory& memory) : memory_(memory) {}
  AtenPool(const AtenPool&) = delete;
  AtenPool& operator=(const AtenPool&) = delete;

  /// Makes it ATen's allocator for the rest of the process. Throws Error when ATen has one in
  /// use already.
  void install();

  /// Makes sure that there is one region of `bytes`. A new one goes to the first stream that has no
  /// room. From here on growths are counted anew.
  void reserve(int64_t bytes);
  PoolUse use() const;
  void reset_peak();

  void* take(int64_t bytes, void* stream);  ///< throws Error when the GPU's memory runs out
  void give_back(void* block);

 private:
  using Region = std::pair<uintptr_t, int64_t>;
  /// A region with room for `bytes`: a spare one, or a new one.
  Region region_for(int64_t bytes);

  GpuMemory& memory_;
  mutable std::mutex mutex_;
  std::vector<Region> spare_;               // reserved, and of no stream yet
  std::map<void*, RegionPool> streams_;     // by stream
  std::unordered_map<void*, void*> owner_;  // block in use -> stream
  int64_t largest_ = 0;                     // bytes of the largest region
  int64_t reserved_ = 0, current_ = 0, peak_ = 0, growths_ = 0;
};

}  // namespace tutti
