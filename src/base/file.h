// Files and descriptors: whole-file reads, atomic writes, and an owner for a descriptor. Every
// failure is an Error that names the path, the operation and the system's reason.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Owns a file descriptor and closes it; -1: it has none.
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

/// What a path leads to, with links followed. What cannot be looked at (a folder that may not be
/// entered, a name that is too long, links in a circle) is an Error.
enum class PathKind { kNothing, kFile, kFolder, kOther };
PathKind kind_at(const std::string& path);
inline bool path_exists(const std::string& path) { return kind_at(path) != PathKind::kNothing; }
inline bool is_file(const std::string& path) { return kind_at(path) == PathKind::kFile; }
inline bool is_folder(const std::string& path) { return kind_at(path) == PathKind::kFolder; }
/// The names in a folder, ascending.
std::vector<std::string> names_in(const std::string& folder);

/// "a folder", "a pipe", "a device" or "a socket", by the mode that stat reports; "" for
/// a regular file.
std::string special_kind(unsigned mode);

/// The whole file. Devices are refused, since many have no end; so is a pipe through which more
/// than 1 GiB comes.
std::string read_file(const std::string& path);
/// Writes a temporary next to the path, syncs, renames: readers see either the old file or the new
/// one, and a crash leaves one of the two. The temporary is removed on failure.
void write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomic(const std::string& path, std::string_view text);

/// Writes a file that the user named (-o), and touches nothing that the user did not name. A
/// device, a pipe or a descriptor (/dev/stdout, /dev/fd/3) is written through; a link is followed;
/// a file is replaced as a whole and keeps its mode and owner. A file with other names (hard
/// links), or in a folder where nothing may be created, is overwritten in place. Throws Error
/// naming the path: for a folder, a read-only file (also for root), a missing folder, a full disk.
void write_output(const std::string& path, std::string_view bytes);
/// Throws what write_output would throw before it writes: for commands that work a long time
/// before they write.
void refuse_bad_output(const std::string& path);
/// Whether an output of this name goes to stdout, where it would mix with what a command says.
bool is_stdout(const std::string& path);

/// write(2), again and again until all is written.
void write_all(int fd, std::span<const std::byte> bytes, const std::string& path);
/// Makes renames in a folder outlive a crash.
void sync_directory(const std::string& path);

}  // namespace tutti
