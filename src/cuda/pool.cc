// The pool's bookkeeping: per stream a RegionPool hands out blocks; regions come from GpuMemory.
#include "cuda/pool.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace tutti {
namespace {

constexpr int64_t kPage = 2 << 20;  // the unit in which the driver hands out memory

}  // namespace

void AtenPool::install() {
  namespace pluggable = torch::cuda::CUDAPluggableAllocator;
  using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  if (c10::cuda::CUDACachingAllocator::get()->initialized()) {
    throw Error(
        "ATen has used the GPU before Tutti opened it: its memory cannot be planned any more");
  }
  // ATen passes the size and stream that it noted when it first met the address, so a block is
  // known by its address alone.
  const auto allocator = pluggable::createCustomAllocator(
      [this](size_t bytes, int device, cudaStream_t stream) {
        if (device != memory_.ordinal()) {
          throw Error(fmt::format("ATen wants memory of GPU {}, but this process has opened GPU {}",
                                  device, memory_.ordinal()));
        }
        return take(static_cast<int64_t>(bytes), stream);
      },
      [this](void* block, size_t, int, cudaStream_t) { give_back(block); });
  // The allocator is leaked: ATen's static objects free tensors while the process exits, after ATen
  // has let go of its allocator.
  static_cast<void>(new std::shared_ptr<Allocator>(allocator));
  pluggable::changeCurrentAllocator(allocator);
}

AtenPool::Region AtenPool::region_for(int64_t bytes) {
  const auto fits = [&](const Region& region) { return region.second >= bytes; };
  if (const auto found = std::find_if(spare_.begin(), spare_.end(), fits); found != spare_.end()) {
    const Region region = *found;
    spare_.erase(found);
    return region;
  }

  // None reserved is large enough. This is what a steady step must not do, so it is counted.
  const int64_t size = (bytes + kGrowth - 1) / kGrowth * kGrowth;
  const auto start = reinterpret_cast<uintptr_t>(memory_.take(kHolder, static_cast<size_t>(size)));
  ++growths_;
  reserved_ += size;
  largest_ = std::max(largest_, size);
  return {start, size};
}

void AtenPool::reserve(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  growths_ = 0;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  if (bytes <= largest_) return;

  const auto start = reinterpret_cast<uintptr_t>(memory_.take(kHolder, static_cast<size_t>(bytes)));
  spare_.emplace_back(start, bytes);
  reserved_ += bytes;
  largest_ = bytes;
}

void* AtenPool::take(int64_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  RegionPool& pool = streams_[stream];
  uintptr_t block = pool.take(bytes);
  if (block == 0) {
    const Region region = region_for(RegionPool::rounded(bytes));
    pool.add(region.first, region.second);
    block = pool.take(bytes);
  }

  TUTTI_CHECK(block != 0, "a new region has no room for {} bytes", bytes);
  owner_[reinterpret_cast<void*>(block)] = stream;
  current_ += RegionPool::rounded(bytes);
  peak_ = std::max(peak_, current_);
  return reinterpret_cast<void*>(block);
}

void AtenPool::give_back(void* block) {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto owner = owner_.find(block);
  TUTTI_CHECK(owner != owner_.end(), "ATen gives back memory that it does not have");
  RegionPool& pool = streams_[owner->second];
  const int64_t before = pool.in_use();
  TUTTI_CHECK(pool.give_back(reinterpret_cast<uintptr_t>(block)),
              "ATen gives back memory that it does not have");
  // The size is the pool's own, not the one that ATen passed.
  current_ -= before - pool.in_use();
  owner_.erase(owner);
}

PoolUse AtenPool::use() const {
  const std::lock_guard lock(mutex_);
  return {.reserved = reserved_, .current = current_, .peak = peak_, .growths = growths_};
}

void AtenPool::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = current_;
}

}  // namespace tutti
