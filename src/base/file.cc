// Two ways to write: atomically, for files of our own, and carefully, for files that the user
// named, which may be links, devices, pipes, or have a mode and an owner of their own.
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace tutti {

namespace {

/// The folder of a path, by its text alone.
std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A file next to `path` that nobody else has, so that a rename stays within the file system;
/// removed on destruction unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const std::string& path) {
    // O_EXCL makes sure that the name is new; a leftover of a process with our id moves us on
    // to the next.
    for (int attempt = 0; !fd; ++attempt) {
      name = fmt::format("{}.tmp-{}-{}", path, getpid(), attempt);
      fd.reset(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!fd && errno != EEXIST) throw_errno("create", path);
    }
  }
  ~Temporary() {
    if (!renamed) unlink(name.c_str());
  }
  /// Writes the bytes to disk; a failure names `path`, the file that they are for.
  void fill(std::span<const std::byte> bytes, const std::string& path) const {
    write_all(fd.get(), bytes, path);
    if (fsync(fd.get()) != 0) throw_errno("sync", path);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  std::string name;
  Fd fd;
  bool renamed = false;
};

/// The descriptor that a name stands for; -1: none. A file that the shell has opened for appending
/// would be written from its start if it were opened again by such a name.
int named_descriptor(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int fd = -1;
    const char* end = path.data() + path.size();
    const auto parsed = std::from_chars(path.data() + folder.size(), end, fd);
    if (parsed.ec == std::errc() && parsed.ptr == end) return fd;
  }
  return -1;
}

/// Where the links at the end of a path lead. The target need not exist.
std::string target_of(const std::string& path) {
  std::string target = path;
  for (int links = 0; links < 40; ++links) {  // as many as the kernel follows
    char to[PATH_MAX];
    const ssize_t length = readlink(target.c_str(), to, sizeof to);
    if (length < 0) return target;  // no link
    const std::string next(to, static_cast<size_t>(length));
    target = next.starts_with('/') ? next : parent_of(target) + "/" + next;
  }
  errno = ELOOP;
  throw_errno("write", path);
}

/// A user's output file before anything is written.
struct Output {
  std::string target;  ///< where the links lead
  bool exists = false;
  struct stat there {};
};

/// Throws whatever can be said about an output before it is written.
Output look_at_output(const std::string& path) {
  if (path.empty()) throw Error("the output needs a file's name, not an empty one");

  // What exists must be a file that may be written, or something to write through.
  Output output{target_of(path)};
  if (stat(output.target.c_str(), &output.there) == 0) {
    output.exists = true;
    const mode_t mode = output.there.st_mode;
    if (S_ISDIR(mode)) throw Error(fmt::format("cannot write {}: it is a folder", path));
    // Root may write to any file, but a file that its owner has made read-only is not to be
    // replaced by chance.
    if (S_ISREG(mode) && (mode & 0222) == 0)
      throw Error(fmt::format(
          "cannot write {}: it is read-only; `chmod u+w` it, or name another file", path));

    if (S_ISREG(mode) && access(output.target.c_str(), W_OK) != 0) throw_errno("write", path);
    return output;
  }

  // What does not exist must have a folder where it may be made.
  if (errno != ENOENT) throw_errno("write", path);
  const std::string folder = parent_of(output.target);
  if (access(folder.c_str(), F_OK) != 0)
    throw Error(fmt::format("cannot write {}: there is no folder {}", path, folder));
  if (access(folder.c_str(), W_OK) != 0) throw_errno("write", path);
  return output;
}

/// Puts a new file in the place of the old one. Returns false, with nothing changed, if the new one
/// could not be what the old one was.
bool replaced(const Output& output, std::span<const std::byte> bytes, const std::string& path) {
  // A rename would take the file from its other names; and without leave to write in the folder
  // there is no temporary.
  if (output.exists &&
      (output.there.st_nlink > 1 || access(parent_of(output.target).c_str(), W_OK) != 0))
    return false;

  // The new file gets owner and mode of the old one before anything is written to it. The owner
  // comes first: changing it may clear bits of the mode.
  Temporary temporary(output.target);
  if (output.exists) {
    if (fchown(temporary.fd.get(), output.there.st_uid, output.there.st_gid) != 0) return false;
    if (fchmod(temporary.fd.get(), output.there.st_mode & 07777) != 0)
      throw_errno("set the mode of", path);
  }

  // It is on the disk before it gets the name, so the name never leads to half a file.
  temporary.fill(bytes, path);
  if (rename(temporary.name.c_str(), output.target.c_str()) != 0) {
    if (errno == EBUSY) return false;  // a file that is mounted, as into a container
    throw_errno("write", path);
  }
  temporary.renamed = true;
  return true;
}

}  // namespace

std::string special_kind(unsigned mode) {
  if (S_ISREG(mode)) return "";
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

void Fd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

void throw_errno(std::string_view what, std::string_view path) {
  // errno is saved first: what follows may change it.
  const int reason = errno;
  std::string hint;
  rlimit limit{};
  if (reason == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    hint = fmt::format(" (the limit is {}; raise it with `ulimit -n`)", limit.rlim_cur);

  throw Error(fmt::format("cannot {} {}: {}{}", what, path, std::strerror(reason), hint));
}

PathKind kind_at(const std::string& path) {
  // A path through a file (ENOTDIR) leads to nothing, too.
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::kNothing;
    throw_errno("look at", path);
  }
  return S_ISREG(info.st_mode)   ? PathKind::kFile
         : S_ISDIR(info.st_mode) ? PathKind::kFolder
                                 : PathKind::kOther;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) throw Error(fmt::format("cannot read {}: {}", folder, error.message()));

  // A folder has no order of its own.
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path) {
  // A device may have no end, so it is refused before anything is read.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw_errno("read", path);
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))
    throw Error(fmt::format("{}: a device, not a file", path));

  // The size is a first guess only: files of /proc say 0, and a pipe has none.
  constexpr size_t kMostPiped = size_t{1} << 30;
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (true) {
    if (!S_ISREG(info.st_mode) && done > kMostPiped)
      throw Error(fmt::format(
          "{}: more than 1 GiB came through {} and there is no end to it; make it a file", path,
          special_kind(info.st_mode)));

    // Room for at least one byte more: this is how the end of a file without a size is found.
    if (done == text.size()) text.resize(done + 4096);
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

  // Data, then the name, then the folder that has the name: each is on the disk before the next.
  temporary.fill(bytes, path);
  if (rename(temporary.name.c_str(), path.c_str()) != 0) throw_errno("rename onto", path);
  temporary.renamed = true;
  sync_directory(parent_of(path));
}

void write_file_atomic(const std::string& path, std::string_view text) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

void write_output(const std::string& path, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));

  // A descriptor: what the command has said so far comes first.
  if (const int fd = named_descriptor(path); fd >= 0) {
    std::fflush(nullptr);
    return write_all(fd, bytes, path);
  }

  // A file is replaced as a whole if that is possible.
  const Output output = look_at_output(path);
  const bool special = output.exists && !S_ISREG(output.there.st_mode);
  if (!special && replaced(output, bytes, path)) return;

  // Otherwise it is written through or overwritten. A terminal must not become ours by that
  // (O_NOCTTY), and only a file is cut to nothing first and synced.
  const Fd fd(
      open(output.target.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | (special ? 0 : O_TRUNC)));
  if (!fd) throw_errno("write", path);
  write_all(fd.get(), bytes, path);
  if (!special && fsync(fd.get()) != 0) throw_errno("sync", path);
}

void refuse_bad_output(const std::string& path) {
  if (named_descriptor(path) < 0) look_at_output(path);
}

bool is_stdout(const std::string& path) { return named_descriptor(path) == STDOUT_FILENO; }

}  // namespace tutti
