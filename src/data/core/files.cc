// Reads the files of a dataset whole: data stays in memory, so that a run cannot meet another
// file halfway.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "config/reserved_words.h"
#include "data/core/sources.h"

namespace tutti {

std::string read_unchanged(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  struct stat before {};
  if (fstat(fd.get(), &before) != 0) throw_errno("read", path);
  if (const std::string kind = special_kind(before.st_mode); !kind.empty())
    throw Error(fmt::format("{}: {}, not a file", path, kind));

  // The size is known, so the file is read into place. A read may return less than asked for.
  std::string bytes(static_cast<size_t>(before.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read", path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }

  // If size or time of the file changed meanwhile, the bytes may be half of one version and half
  // of another.
  struct stat after {};
  if (fstat(fd.get(), &after) != 0) throw_errno("read", path);
  if (done != bytes.size() || after.st_size != before.st_size ||
      after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
      after.st_mtim.tv_nsec != before.st_mtim.tv_nsec) {
    throw Error(fmt::format("{}: changed while it was read", path));
  }
  if (bytes.empty()) throw Error(fmt::format("{}: the file is empty", path));
  return bytes;
}

std::string read_gz(const std::string& path) {
  std::string packed = read_unchanged(path);
  if (packed.size() < 2 || packed[0] != '\x1f' || packed[1] != '\x8b') return packed;
  z_stream stream{};
  constexpr int kGzip = 15 + 16;  // the widest window, gzip's header
  if (inflateInit2(&stream, kGzip) != Z_OK) throw Error(fmt::format("{}: zlib cannot start", path));

  // The size of the text is not known before: gzip's own field has only 32 bits, and a file may
  // have several parts. So the buffer starts at a guess and doubles.
  std::string bytes(packed.size() * 4, '\0');
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  size_t read = 0, written = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    const size_t in = std::min(packed.size() - read, kMost);
    stream.next_in = reinterpret_cast<Bytef*>(packed.data()) + read;
    stream.avail_in = static_cast<uInt>(in);
    if (written == bytes.size()) bytes.resize(bytes.size() * 2);
    const size_t out = std::min(bytes.size() - written, kMost);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data()) + written;
    stream.avail_out = static_cast<uInt>(out);
    code = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += out - stream.avail_out;
    // A file may be several compressed ones, one after the other; together they are its text.
    if (code == Z_STREAM_END && read < packed.size()) code = inflateReset(&stream);
  }

  bytes.resize(written);
  inflateEnd(&stream);

  // zlib could not go on: all input is used, and more was expected.
  if (code == Z_BUF_ERROR) throw Error(fmt::format("{}: the compressed file ends early", path));
  if (code != Z_STREAM_END) throw Error(fmt::format("{}: the compressed file is damaged", path));
  return bytes;
}

std::string resolve_path(const std::string& path) {
  const InstalledData* installed = installed_data(path);
  if (installed == nullptr) return path;

  const char* folder = std::getenv("TUTTI_DATA");
  const std::string place = std::string(folder != nullptr && *folder != '\0' ? folder : "data") +
                            "/" + std::string(installed->file);
  if (access(place.c_str(), F_OK) != 0) {
    throw Error(fmt::format("{}: {} is missing; run ./tutti setup", place, installed->help));
  }
  return place;
}

}  // namespace tutti
