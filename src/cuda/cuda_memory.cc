// The account of the GPU's memory, and the message when there is not enough of it.
#include "cuda/cuda_memory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "cuda/errors.h"

namespace tutti {

void* GpuMemory::take(const std::string& holder, size_t bytes) {
  TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // no fault of the device: the next call must not find it
    throw Error(out_of_memory(holder, bytes));
  }
  check_cuda(error, "cudaMalloc");

  const std::lock_guard lock(mutex_);
  holders_[holder] += static_cast<int64_t>(bytes);
  blocks_[memory] = {holder, static_cast<int64_t>(bytes)};
  return memory;
}

void GpuMemory::give_back(void* memory) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(memory);
    TUTTI_CHECK(at != blocks_.end(), "GPU memory that was not taken is given back");
    holders_[at->second.holder] -= at->second.bytes;
    blocks_.erase(at);
  }
  // Destructors call this, so errors are ignored: a device that failed has been reported before.
  (void)cudaSetDevice(ordinal_);
  (void)cudaFree(memory);
}

GpuMemory::Left GpuMemory::left() const {
  TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
  size_t free = 0, total = 0;
  TUTTI_CUDA_CALL(cudaMemGetInfo, &free, &total);
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

std::string GpuMemory::out_of_memory(const std::string& holder, size_t bytes) const {
  const Left left = this->left();

  // The account is copied, so that sorting and formatting do not hold the lock.
  std::vector<std::pair<int64_t, std::string>> largest;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, held] : holders_) {
      if (held > 0) largest.emplace_back(held, name);
    }
  }

  // The largest holders come first: they are what can be made smaller.
  std::sort(largest.begin(), largest.end(), std::greater<>());
  std::vector<std::string> held;
  for (const auto& [size, name] : largest)
    held.push_back(fmt::format("{} {}", name, bytes_text(size)));
  return fmt::format(
      "out of GPU memory: {} wanted for {}; {} of {} are free; held by this rank: {}",
      bytes_text(bytes), holder, bytes_text(left.free), bytes_text(left.total),
      held.empty() ? "nothing" : fmt::format("{}", fmt::join(held, ", ")));
}

}  // namespace tutti
