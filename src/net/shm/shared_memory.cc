// The kernel promises memory that it does not have and kills whoever touches it. So sizes are
// compared with what is available before, and every page is touched when it is allocated.
#include "net/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/pages.h"

// Constants of kernels that are newer than some C libraries we build with.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace tutti {

namespace {

[[noreturn]] void refuse(const std::string& what, size_t bytes, const std::string& reason) {
  throw Error(fmt::format("{}: cannot allocate {}: {}", what, bytes_text(bytes), reason));
}

// Makes all pages present, huge ones where the system gives them. Readers of a segment do it, too:
// for them it fills in page tables, which the first step would else spend its time on.
void populate(std::byte* address, size_t bytes, bool write, const std::string& what) {
  advise_huge_pages(address, bytes);
  if (::madvise(address, bytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) return;
  if (errno != EINVAL) refuse(what, bytes, std::strerror(errno));  // EINVAL: a kernel before 5.14
}

Mapping map(int fd, size_t bytes, int protection, int flags, const std::string& what) {
  void* address = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (address == MAP_FAILED) refuse(what, bytes, std::strerror(errno));
  return Mapping(address, bytes);
}

/// A file that grows past RLIMIT_FSIZE is answered with a deadly SIGXFSZ, so the limit is asked for
/// before.
void check_file_limit(size_t bytes, const std::string& what) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    refuse(what, bytes,
           fmt::format("the limit on file sizes (ulimit -f) is {}", bytes_text(limit.rlim_cur)));
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

void check_available(size_t bytes, const std::string& what) {
  const size_t available = available_memory();
  if (bytes > available)
    refuse(what, bytes, fmt::format("only {} of memory are available", bytes_text(available)));
}

Mapping allocate_private(size_t bytes, const std::string& what) {
  if (bytes == 0) return {};
  check_available(bytes, what);
  Mapping mapping =
      map(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, what);
  populate(mapping.data(), bytes, true, what);
  return mapping;
}

SharedMemory allocate_shared(size_t bytes, bool owner_writes_alone, const std::string& what) {
  if (bytes == 0) return {};
  check_available(bytes, what);
  check_file_limit(bytes, what);

  // A memfd has no name, so nothing is left over however the ranks end.
  Fd fd(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) refuse(what, bytes, std::strerror(errno));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    refuse(what, bytes, std::strerror(errno));

  // Mapped and populated first, because the advice to use huge pages needs a mapping; fallocate
  // then reserves what a kernel that cannot populate has left out.
  Mapping mapping = map(fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED, what);
  populate(mapping.data(), bytes, true, what);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    refuse(what, bytes, std::strerror(errno));

  // Sealed last: the seal against writable mappings spares the one that exists. F_SEAL_SEAL ends
  // it, so the others can rely on what they find.
  const int seals =
      F_SEAL_SHRINK | F_SEAL_GROW | (owner_writes_alone ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw_errno("seal", what);
  return {std::move(fd), std::move(mapping)};
}

std::shared_ptr<MappedWindow> window_for(const std::shared_ptr<Window>& given, size_t bytes,
                                         bool shared, const std::string& what) {
  if (given == nullptr) {
    if (shared) return std::make_shared<MappedWindow>(allocate_shared(bytes, true, what));
    return std::make_shared<MappedWindow>(SharedMemory{{}, allocate_private(bytes, what)});
  }

  const auto window = std::dynamic_pointer_cast<MappedWindow>(given);
  const bool fits = window != nullptr && window->bytes().size() == bytes &&
                    (bytes == 0 || bool(window->fd()) == shared);
  if (!fits)
    throw Error(fmt::format(
        "{}: the one that is given is not of this transport's kind, or not {} bytes", what, bytes));
  return window;
}

Mapping map_shared(int fd, size_t bytes, bool writable, const std::string& what) {
  if (bytes == 0) return {};

  // What a peer hands over is not trusted: without the seal it could shrink the segment later, and
  // reading it would be a SIGBUS.
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (::fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != bytes || seals < 0 ||
      !(seals & F_SEAL_SHRINK)) {
    throw Error(
        fmt::format("{}: what was received is not a sealed segment of {} bytes", what, bytes));
  }

  Mapping mapping = map(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, what);
  populate(mapping.data(), bytes, writable, what);
  return mapping;
}

}  // namespace tutti
