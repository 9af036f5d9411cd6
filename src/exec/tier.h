// The second tier, next to the host's memory: a file without a name that offloaded values
// are stored in. What is read and written there goes through the system's page cache and is
// gone with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti {

class FileTier {
 public:
  /// Makes a file of `bytes` bytes in `folder` (empty: the system's folder for temporary files),
  /// all zero. Throws Error naming the folder if it cannot be had: no room, no right to write.
  FileTier(const std::string& folder, int64_t bytes);
  ~FileTier();
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  void read(int64_t offset, std::span<std::byte> into) const;
  void write(int64_t offset, std::span<const std::byte> from) const;
  /// All of it, as if it were memory, for what is done seldom (initial values, checkpoints).
  std::span<std::byte> mapped() const { return mapped_; }
  /// Lets go of the memory that mapped() has taken.
  void forget() const;

 private:
  int file_ = -1;
  std::span<std::byte> mapped_;
};

}  // namespace tutti
