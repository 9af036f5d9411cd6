#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace tutti {

namespace {

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A file beside `path` that nobody else has; removed on destruction unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const std::string& path) {
    for (int attempt = 0; !fd; ++attempt) {
      name = fmt::format("{}.tmp-{}-{}", path, getpid(), attempt);
      fd.reset(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!fd && errno != EEXIST) throw_errno("create", name);
    }
  }
  ~Temporary() {
    if (!renamed) unlink(name.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  std::string name;
  Fd fd;
  bool renamed = false;
};

}  // namespace

void Fd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

void throw_errno(std::string_view what, std::string_view path) {
  const int reason = errno;
  throw Error(fmt::format("cannot {} {}: {}", what, path, std::strerror(reason)));
}

std::string read_file(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw_errno("read", path);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (true) {
    if (done == text.size()) text.resize(done + 4096);  // also how the end of a file without a size (/proc) is found
    const ssize_t n = read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read", path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void sync_directory(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  if (fsync(fd.get()) != 0) throw_errno("sync", path);
}

void write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
  Temporary temporary(path);
  write_all(temporary.fd.get(), bytes, temporary.name);
  if (fsync(temporary.fd.get()) != 0) throw_errno("sync", temporary.name);
  if (rename(temporary.name.c_str(), path.c_str()) != 0) throw_errno("rename onto", path);
  temporary.renamed = true;
  sync_directory(parent_of(path));
}

void write_file_atomic(const std::string& path, std::string_view text) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace tutti
