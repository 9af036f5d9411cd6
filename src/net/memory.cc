#include "net/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "base/error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace tutti {

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

std::string mebibytes(size_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

[[noreturn]] void refuse(const std::string& what, size_t bytes, const std::string& reason) {
  throw Error(fmt::format("{}: cannot allocate {}: {}", what, mebibytes(bytes), reason));
}

/// The first number in a file, or kNoLimit ("max", no such file).
size_t read_number(const std::string& path) {
  std::ifstream in(path);
  size_t value = 0;
  return in >> value ? value : kNoLimit;
}

size_t left_by_system() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  size_t kib = 0;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kNoLimit;
}

/// Reclaimable page cache counts as used in memory.current, so it is given back here.
size_t left_by_group(const std::string& folder) {
  const size_t limit = read_number(folder + "/memory.max");
  const size_t used = read_number(folder + "/memory.current");
  if (limit == kNoLimit || used == kNoLimit) return kNoLimit;
  size_t cache = 0;
  std::ifstream in(folder + "/memory.stat");
  std::string key;
  for (size_t value = 0; in >> key >> value;) {
    if (key == "inactive_file" || key == "active_file") cache += value;
  }
  return limit > used - std::min(used, cache) ? limit - (used - std::min(used, cache)) : 0;
}

void populate(std::byte* address, size_t bytes, bool write, const std::string& what) {
  ::madvise(address, bytes, MADV_HUGEPAGE);
  if (::madvise(address, bytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) return;
  if (errno != EINVAL) refuse(what, bytes, std::strerror(errno));  // EINVAL: a kernel before 5.14
}

Mapping map(int fd, size_t bytes, int protection, int flags, const std::string& what) {
  void* address = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (address == MAP_FAILED) refuse(what, bytes, std::strerror(errno));
  return Mapping(address, bytes);
}

/// A file that grows past RLIMIT_FSIZE is answered with a deadly SIGXFSZ; so ask before.
void check_file_limit(size_t bytes, const std::string& what) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    refuse(what, bytes, fmt::format("the limit on file sizes (ulimit -f) is {}", mebibytes(limit.rlim_cur)));
  }
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

size_t available_memory() {
  size_t available = left_by_system();
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::")) continue;
    // Every group on the way up may have a limit of its own.
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      available = std::min(available, left_by_group("/sys/fs/cgroup" + path));
      if (path.empty()) break;
    }
  }
  return available;
}

void check_available(size_t bytes, const std::string& what) {
  const size_t available = available_memory();
  if (bytes > available) refuse(what, bytes, fmt::format("only {} of memory are available", mebibytes(available)));
}

Mapping allocate_private(size_t bytes, const std::string& what) {
  if (bytes == 0) return {};
  check_available(bytes, what);
  Mapping mapping = map(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, what);
  populate(mapping.data(), bytes, true, what);
  return mapping;
}

SharedMemory allocate_shared(size_t bytes, bool owner_writes_alone, const std::string& what) {
  if (bytes == 0) return {};
  check_available(bytes, what);
  check_file_limit(bytes, what);
  Fd fd(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) refuse(what, bytes, std::strerror(errno));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) refuse(what, bytes, std::strerror(errno));
  Mapping mapping = map(fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED, what);
  populate(mapping.data(), bytes, true, what);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) refuse(what, bytes, std::strerror(errno));
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (owner_writes_alone ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw_errno("seal", what);
  return {std::move(fd), std::move(mapping)};
}

Mapping map_shared(int fd, size_t bytes, bool writable, const std::string& what) {
  if (bytes == 0) return {};
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (::fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != bytes || seals < 0 || !(seals & F_SEAL_SHRINK)) {
    throw Error(fmt::format("{}: what was received is not a sealed segment of {} bytes", what, bytes));
  }
  Mapping mapping = map(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, what);
  populate(mapping.data(), bytes, writable, what);
  return mapping;
}

}  // namespace tutti
