// Files and descriptors: whole-file reads, atomic writes, and an owner for a descriptor. Every failure is an Error that
// names the path, the operation and the reason of the system.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// "cannot <what> <path>: <strerror(errno)>" as an Error.
[[noreturn]] void throw_errno(std::string_view what, std::string_view path);

std::string read_file(const std::string& path);
/// Writes beside the path, syncs, renames: readers see the old file or the new one. Removes the temporary when it
/// fails.
void write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomic(const std::string& path, std::string_view text);
/// write(2) until all is written.
void write_all(int fd, std::span<const std::byte> bytes, const std::string& path);
void sync_directory(const std::string& path);

}  // namespace tutti
