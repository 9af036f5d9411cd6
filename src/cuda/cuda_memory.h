// The memory of this process's GPU, with an account of who holds how much of it: when it runs out,
// the message names the largest holders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tutti {

/// Thread-safe.
class GpuMemory {
 public:
  explicit GpuMemory(int ordinal) : ordinal_(ordinal) {}
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  int ordinal() const { return ordinal_; }
  /// Memory as cudaMalloc gives it: on a 256-byte border (in fact 512), with undefined contents.
  /// `holder` names it in messages. Throws Error, such as "out of GPU memory: 9.4 GiB wanted for
  /// saved; 3.1 GiB of 139.8 are free; held by this rank: gradient 1.2 GiB, moment 0.9 GiB".
  void* take(const std::string& holder, size_t bytes);
  void give_back(void* memory);

  struct Left {
    int64_t free, total;
  };
  Left left() const;

 private:
  struct Held {
    std::string holder;
    int64_t bytes;
  };
  std::string out_of_memory(const std::string& holder, size_t bytes) const;

  const int ordinal_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> holders_;
  std::unordered_map<void*, Held> blocks_;
};

}  // namespace tutti
