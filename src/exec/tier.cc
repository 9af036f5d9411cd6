// Fetches and evictions go by pread and pwrite, not by the mapping: they report errors (a full
// disk, a fault) as return values, where a mapping would answer with a signal.
#include "exec/tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/error.h"

namespace tutti {

namespace {

[[noreturn]] void fail(const std::string& what, int code) {
  throw Error(fmt::format("offloaded values: {}: {}", what, std::strerror(code)));
}

}  // namespace

FileTier::FileTier(const std::string& folder, int64_t bytes) {
  // O_TMPFILE makes a file without a name, so nothing is left over however the process ends.
  std::error_code missing;
  const std::string place =
      folder.empty() ? std::filesystem::temp_directory_path(missing).string() : folder;
  if (missing)
    throw Error(fmt::format(
        "offloaded values: no folder for temporary files ({}): set layout.offload_folder",
        missing.message()));

  file_ = ::open(place.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) fail(fmt::format("no file in {}", place), errno);
  // Room is taken at once: a disk that is full later would end a step.
  if (const int code = ::posix_fallocate(file_, 0, bytes); code != 0) {
    ::close(file_);
    fail(fmt::format("no room for {} in {}", bytes_text(bytes), place), code);
  }

  // A constructor that throws has no destructor, so the file is closed by hand.
  void* at =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) {
    const int code = errno;
    ::close(file_);
    fail("the file cannot be mapped", code);
  }
  mapped_ = {static_cast<std::byte*>(at), static_cast<size_t>(bytes)};
}

FileTier::~FileTier() {
  ::munmap(mapped_.data(), mapped_.size());
  ::close(file_);
}

void FileTier::read(int64_t offset, std::span<std::byte> into) const {
  // A call may move less than it was asked for, and a signal may interrupt it.
  while (!into.empty()) {
    const ssize_t n = ::pread(file_, into.data(), into.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("reading", n < 0 ? errno : EIO);
    into = into.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void FileTier::write(int64_t offset, std::span<const std::byte> from) const {
  while (!from.empty()) {
    const ssize_t n = ::pwrite(file_, from.data(), from.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("writing", n < 0 ? errno : EIO);
    from = from.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void FileTier::forget() const { ::madvise(mapped_.data(), mapped_.size(), MADV_DONTNEED); }

}  // namespace tutti
