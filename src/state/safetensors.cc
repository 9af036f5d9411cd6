// Nothing in a file is trusted: every size and offset of a header is checked before it is used,
// since a header can be well-formed and wrong.
#include "state/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/message.h"

namespace tutti {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; so must this machine be");

constexpr int64_t kLengthBytes = 8;
// Of a file that is written, so much is on its way to the disk while as much is written after it.
constexpr int64_t kWriteBack = int64_t{32} << 20;
// so much is handed to a write at once
constexpr size_t kWriteAtOnce = size_t{1} << 20;

/// The bytes that a shape has in float32; -1 for one that overflows or is negative.
int64_t bytes_of(const std::vector<int64_t>& dims) {
  int64_t bytes = sizeof(float);
  for (const int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  return bytes;
}

void write_at(int fd, std::span<const std::byte> bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

/// The header's text with its length in front.
std::string read_header(int fd, int64_t file_bytes, const std::string& path) {
  uint64_t length = 0;
  if (file_bytes < kLengthBytes) throw Error(fmt::format("{}: too short for a header", path));
  read_at(fd, std::as_writable_bytes(std::span(&length, 1)), 0, path);
  if (length > static_cast<uint64_t>(file_bytes - kLengthBytes))
    throw Error(fmt::format("{}: a header of {} bytes does not fit in the file", path, length));

  // The length has been checked against the file, so a damaged one does not ask for all memory.
  std::string header(static_cast<size_t>(kLengthBytes) + length, '\0');
  read_at(fd, std::as_writable_bytes(std::span(header)), 0, path);
  return header;
}

PlacedTensor placed(const std::string& name, const json& tensor, int64_t data, int64_t file_bytes,
                    const std::string& path) {
  PlacedTensor p{{name, tensor.at("shape").get<std::vector<int64_t>>()},
                 tensor.at("dtype").get<std::string>()};
  const auto begin = tensor.at("data_offsets").at(0).get<uint64_t>();
  const auto end = tensor.at("data_offsets").at(1).get<uint64_t>();
  const auto room = static_cast<uint64_t>(file_bytes - data);
  if (end < begin || end > room)
    throw Error(fmt::format("{}: {} is outside of the file", path, name));
  p.begin = data + static_cast<int64_t>(begin);
  p.end = data + static_cast<int64_t>(end);
  if (p.type == "F32" && p.shape.bytes() != p.end - p.begin)
    throw Error(fmt::format("{}: {} has {} bytes of values, not what its shape says", path, name,
                            p.end - p.begin));
  return p;
}

}  // namespace

int64_t TensorShape::bytes() const { return bytes_of(dims); }

std::string safetensors_header(const std::vector<TensorShape>& tensors) {
  // Offsets count from the end of the header.
  json header = json::object();
  int64_t offset = 0;
  for (const TensorShape& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    const bool fresh = header
                           .emplace(tensor.name, json{{"dtype", "F32"},
                                                      {"shape", tensor.dims},
                                                      {"data_offsets", {offset, end}}})
                           .second;
    TUTTI_CHECK(fresh, "two tensors named {}", tensor.name);
    offset = end;
  }

  // The padding puts the first tensor on a border of eight bytes.
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

TensorFile open_safetensors(const std::string& path) {
  TensorFile file{Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC)), 0, "", {}};
  if (!file.fd) throw_errno("open", path);
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0) throw_errno("read", path);
  file.bytes = info.st_size;
  file.header = read_header(file.fd.get(), file.bytes, path);
  try {
    const json header = json::parse(file.header.substr(kLengthBytes));
    if (!header.is_object()) throw Error(fmt::format("{}: the header is not an object", path));
    for (const auto& [name, tensor] : header.items())
      // Other tools keep notes in `__metadata__`; it is no tensor.
      if (name != "__metadata__")
        file.tensors.push_back(
            placed(name, tensor, static_cast<int64_t>(file.header.size()), file.bytes, path));
    return file;
  } catch (const json::exception& fault) {
    throw Error(fmt::format(
        "{}: damaged: its header is no safetensors header ({}); copy or save the file again", path,
        json_fault(fault)));
  }
}

void read_at(int fd, std::span<std::byte> bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read", path);
    if (n == 0)
      throw Error(fmt::format("{}: ends at byte {}, in the middle of a tensor", path, offset));
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

RangeWriter::RangeWriter(std::string path, int64_t bytes)
    : path_(std::move(path)),
      fd_(open(path_.c_str(), O_WRONLY | O_CLOEXEC | (bytes > 0 ? O_CREAT | O_EXCL : 0), 0666)) {
  if (!fd_) throw_errno(bytes > 0 ? "create" : "open", path_);
  if (bytes == 0) return;

  // Room is asked for at once, so that a full disk says so before anything is written. Where the
  // file system cannot give it beforehand, the file gets its length alone.
  int taken = 0;
  do taken = fallocate(fd_.get(), 0, 0, bytes);
  while (taken != 0 && errno == EINTR);
  if (taken != 0 && errno == EOPNOTSUPP) taken = ftruncate(fd_.get(), bytes);
  if (taken != 0) throw_errno("write", path_);
}

void RangeWriter::write_back(int64_t from, int64_t to, unsigned flags) {
  while (from < to && ::sync_file_range(fd_.get(), from, to - from, flags) != 0)
    if (errno != EINTR) throw_errno("sync", path_);
}

void RangeWriter::write(std::span<const std::byte> bytes, int64_t offset) {
  write_at(fd_.get(), bytes, offset, path_);
  if (from_ < 0) from_ = offset;
  to_ = offset + static_cast<int64_t>(bytes.size());
  if (to_ - from_ < kWriteBack) return;

  // The last part begins to be written out, and the one before it must be on the disk.
  write_back(from_, to_, SYNC_FILE_RANGE_WRITE);
  if (before_ >= 0)
    write_back(before_, from_,
               SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  before_ = from_;
  from_ = to_;
}

void RangeWriter::sync() {
  if (fsync(fd_.get()) != 0) throw_errno("sync", path_);
}

void write_safetensors(const std::string& path, const std::vector<TensorShape>& tensors,
                       const std::function<std::span<const float>(size_t tensor)>& values) {
  const std::string header = safetensors_header(tensors);
  int64_t offset = static_cast<int64_t>(header.size()), bytes = offset;
  for (const TensorShape& tensor : tensors) bytes += tensor.bytes();
  RangeWriter writer(path, bytes);
  writer.write(std::as_bytes(std::span(header)), 0);
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::span<const std::byte> rest = std::as_bytes(values(t));
    TUTTI_CHECK(static_cast<int64_t>(rest.size()) == tensors[t].bytes(), "{} has {} bytes, not {}",
                tensors[t].name, rest.size(), tensors[t].bytes());
    while (!rest.empty()) {
      const size_t n = std::min(rest.size(), kWriteAtOnce);
      writer.write(rest.first(n), offset);
      offset += static_cast<int64_t>(n);
      rest = rest.subspan(n);
    }
  }
  writer.sync();
}

std::vector<FileTensor> read_tensors(const std::string& path,
                                     const std::function<bool(const std::string&)>& wanted) {
  const TensorFile file = open_safetensors(path);
  std::vector<FileTensor> tensors;
  for (const PlacedTensor& p : file.tensors) {
    if (!wanted(p.shape.name)) continue;
    if (p.type != "F32")
      throw Error(fmt::format("{}: {} is {}, not F32", path, p.shape.name, p.type));
    FileTensor tensor{p.shape.name, p.shape.dims, {}};
    tensor.values.resize(static_cast<size_t>(p.end - p.begin) / sizeof(float));
    read_at(file.fd.get(), std::as_writable_bytes(std::span(tensor.values)), p.begin, path);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace tutti
