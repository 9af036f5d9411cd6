// Nothing in a file is trusted: the hash of a state is checked first, and then every size and
// offset, since a header can be well-formed and wrong. A state is read twice for that, once to
// hash the file and once to fill the pieces. It is read 1 MiB at a time, so no rank needs
// memory for a whole tensor.
#include "state/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text/message.h"

namespace tutti {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; so must this machine be");

// small enough to be hashed while it is in the cache
constexpr size_t kReadAtOnce = size_t{1} << 20;
constexpr uint64_t kLengthBytes = 8;
// Of a file that is written, so much is on its way to the disk while as much is written after it.
constexpr int64_t kWriteBack = int64_t{32} << 20;

std::string tensor_name(const EntryShape& entry) {
  return entry.slot == kParameterSlot ? entry.name : entry.name + "@" + entry.slot;
}

uint64_t bytes_of(const EntryShape& entry) {
  return static_cast<uint64_t>(entry.size()) * sizeof(float);
}

/// The header with its length in front.
std::string encode_header(const std::vector<EntryShape>& entries) {
  // Offsets count from the end of the header, and tensors follow one another in the
  // order of the entries.
  json header = json::object();
  uint64_t offset = 0;
  for (const EntryShape& entry : entries) {
    const uint64_t end = offset + bytes_of(entry);
    const bool fresh =
        header
            .emplace(tensor_name(entry),
                     json{{"dtype", "F32"}, {"shape", entry.dims}, {"data_offsets", {offset, end}}})
            .second;
    TUTTI_CHECK(fresh, "two tensors named {}", tensor_name(entry));
    offset = end;
  }

  // The padding puts the first tensor on a border of eight bytes.
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

// Reads all of the bytes, however many calls it takes.
void read_at(int fd, std::span<std::byte> bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read", path);
    if (n == 0)
      throw Error(fmt::format("{}: ends at byte {}, in the middle of a tensor", path, offset));
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

// Whether the file is the one that the manifest was written for: first its size, which is cheap and
// names a truncated file, then its hash.
void check_stamp(int fd, const FileStamp& stamp, const std::string& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) throw_errno("read", path);
  if (info.st_size != stamp.bytes) {
    damaged_checkpoint(
        path, fmt::format("{} bytes where the manifest says {}{}", info.st_size, stamp.bytes,
                          info.st_size < stamp.bytes ? ": truncated" : ""));
  }

  Sha256 sha;
  std::vector<std::byte> buffer(kReadAtOnce);
  for (int64_t offset = 0; offset < stamp.bytes; offset += static_cast<int64_t>(kReadAtOnce)) {
    const std::span part(buffer.data(),
                         std::min(kReadAtOnce, static_cast<size_t>(stamp.bytes - offset)));
    read_at(fd, part, static_cast<uint64_t>(offset), path);
    sha.add(part);
  }

  if (const std::string found = hex(sha.finish()); found != stamp.sha256) {
    damaged_checkpoint(path,
                       fmt::format("its SHA-256 is {}, the manifest says {}", found, stamp.sha256));
  }
}

/// The parsed header and where the data begins.
std::pair<json, uint64_t> read_header(int fd, int64_t file_bytes, const std::string& path) {
  uint64_t length = 0;
  if (file_bytes < static_cast<int64_t>(kLengthBytes))
    throw Error(fmt::format("{}: too short for a header", path));
  read_at(fd, std::as_writable_bytes(std::span(&length, 1)), 0, path);
  if (length > static_cast<uint64_t>(file_bytes) - kLengthBytes) {
    throw Error(fmt::format("{}: a header of {} bytes does not fit in the file", path, length));
  }

  // The length has been checked against the file, so a damaged one does not ask for all memory.
  std::string text(length, '\0');
  read_at(fd, std::as_writable_bytes(std::span(text)), kLengthBytes, path);
  json header = json::parse(text);
  if (!header.is_object()) throw Error(fmt::format("{}: the header is not an object", path));

  // Other tools keep notes in `__metadata__`; it is no tensor.
  header.erase("__metadata__");
  return {std::move(header), kLengthBytes + length};
}

/// Where the bytes of the entry begin in the data. What does not match is added to `faults`.
uint64_t match(const json& header, const EntryShape& entry, uint64_t data_bytes,
               std::vector<std::string>& faults) {
  const std::string name = tensor_name(entry);
  if (!header.contains(name)) {
    faults.push_back(fmt::format("{} is missing", name));
    return 0;
  }

  const json& tensor = header.at(name);
  if (const auto type = tensor.at("dtype").get<std::string>(); type != "F32") {
    faults.push_back(fmt::format("{} is {}, not F32", name, type));
  }
  if (tensor.at("shape") != json(entry.dims)) {
    faults.push_back(fmt::format("{} is {}, the job has {}", name, tensor.at("shape").dump(),
                                 json(entry.dims).dump()));
    return 0;
  }

  // A right shape does not make the offsets right, and the reads that follow trust them.
  const auto begin = tensor.at("data_offsets").at(0).get<uint64_t>();
  const auto end = tensor.at("data_offsets").at(1).get<uint64_t>();
  if (end > data_bytes || begin > end || end - begin != bytes_of(entry)) {
    faults.push_back(fmt::format("{} is at [{}, {}) of {} bytes, which does not fit its shape",
                                 name, begin, end, data_bytes));
  }
  return begin;
}

// The offsets of all entries. All faults are reported at once, those of tensors that the job does
// not have among them.
std::vector<uint64_t> match_all(json header, const std::vector<EntryShape>& entries,
                                uint64_t data_bytes, const std::string& path) {
  std::vector<std::string> faults;
  std::vector<uint64_t> offsets;
  for (const EntryShape& entry : entries) {
    offsets.push_back(match(header, entry, data_bytes, faults));
    header.erase(tensor_name(entry));
  }
  for (const auto& extra : header.items())
    faults.push_back(fmt::format("{} is not in the job", extra.key()));
  if (!faults.empty()) {
    std::string list;
    for (const std::string& fault : faults) list += "\n  " + fault;
    throw Error(fmt::format("{}: {} tensors do not match the job:{}", path, faults.size(), list));
  }
  return offsets;
}

/// Copies `values`, which are the elements of an entry from `first` on, to the pieces
/// that hold some of them.
void fill(std::span<const StatePiece> pieces, int64_t first, std::span<const float> values) {
  for (const StatePiece& piece : pieces) {
    const int64_t begin = std::max(first, piece.range.begin);
    const int64_t end = std::min(first + static_cast<int64_t>(values.size()), piece.range.end);
    if (begin < end)
      std::copy_n(values.data() + (begin - first), end - begin,
                  &piece.values[begin - piece.range.begin]);
  }
}

/// Reads one entry, range by range; `at` is where it begins in the file.
std::vector<Digest> read_entry(int fd, uint64_t at, int64_t size,
                               std::span<const StatePiece> pieces, std::vector<float>& buffer,
                               const std::string& path) {
  std::vector<Digest> digests;
  for (int64_t first = 0; first < size; first += kHashedRange) {
    const std::span values(buffer.data(),
                           static_cast<size_t>(std::min(kHashedRange, size - first)));
    read_at(fd, std::as_writable_bytes(values), at + static_cast<uint64_t>(first) * sizeof(float),
            path);
    digests.push_back(sha256(std::as_bytes(values)));
    fill(pieces, first, values);
  }
  return digests;
}

/// Has the system begin to write out the last kWriteBack bytes before `end`, and waits until those
/// before them are on the disk.
void write_back(int fd, int64_t end, const std::string& path) {
  const auto sync = [&](int64_t from, unsigned flags) {
    while (from >= 0 && ::sync_file_range(fd, from, kWriteBack, flags) != 0)
      if (errno != EINTR) throw_errno("sync", path);
  };
  sync(end - kWriteBack, SYNC_FILE_RANGE_WRITE);
  sync(end - 2 * kWriteBack,
       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

}  // namespace

void damaged_checkpoint(const std::string& file, const std::string& why) {
  throw Error(
      fmt::format("{}: damaged: {}; remove the folder {} to go on from the checkpoint before it",
                  file, why, file.substr(0, file.rfind('/'))));
}

WrittenState write_safetensors(const std::string& path, const StateSource& source) {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) throw_errno("create", path);
  WrittenState written;
  Sha256 sha;
  // A large file goes to the disk while it is written. If the sync at the end did it all, other
  // ranks, which see this one's work in its processor time and its writes, would see none
  // meanwhile, and memory would fill with what is not written out yet.
  int64_t written_back = 0;
  auto put = [&](std::span<const std::byte> bytes) {
    sha.add(bytes);
    write_all(fd.get(), bytes, path);
    written.file.bytes += static_cast<int64_t>(bytes.size());
    for (; written.file.bytes - written_back >= kWriteBack; written_back += kWriteBack)
      write_back(fd.get(), written_back + kWriteBack, path);
  };

  // The header can be written first, since sizes are known without the values.
  const std::string header = encode_header(source.entries);
  put(std::as_bytes(std::span(header)));
  StateHasher hasher(source.entries.size());
  std::vector<Digest> digests;
  for (size_t e = 0; e < source.entries.size(); ++e) {
    const std::span<const float> values = source.values(e);
    TUTTI_CHECK(static_cast<int64_t>(values.size()) == source.entries[e].size(),
                "{} has {} values, not {}", tensor_name(source.entries[e]), values.size(),
                source.entries[e].size());
    digests.clear();
    // Each range is hashed twice while it is in the cache: for the hash of the state, and
    // for that of the file.
    for (size_t at = 0; at < values.size(); at += kHashedRange) {
      const auto range =
          std::as_bytes(values.subspan(at, std::min<size_t>(kHashedRange, values.size() - at)));
      digests.push_back(sha256(range));
      put(range);
    }
    hasher.add(source.entries[e], digests);
  }

  // The file must be on the disk before the caller shows it under its name.
  if (fsync(fd.get()) != 0) throw_errno("sync", path);
  written.file.sha256 = hex(sha.finish());
  written.state_sha256 = hasher.finish(source.counters);
  return written;
}

std::vector<FileTensor> read_tensors(const std::string& path,
                                     const std::function<bool(const std::string&)>& wanted) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw_errno("read", path);

  // This file may come from anywhere, so its header decides nothing unchecked.
  try {
    const auto [header, data] = read_header(fd.get(), info.st_size, path);
    std::vector<FileTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
      if (!wanted(name)) continue;
      FileTensor tensor{name, entry.at("shape").get<std::vector<int64_t>>(), {}};
      const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
      const auto end = entry.at("data_offsets").at(1).get<uint64_t>();

      if (const auto type = entry.at("dtype").get<std::string>(); type != "F32")
        throw Error(fmt::format("{}: {} is {}, not F32", path, name, type));
      if (end < begin || end > static_cast<uint64_t>(info.st_size) - data ||
          (end - begin) % sizeof(float) != 0)
        throw Error(fmt::format("{}: {} is outside of the file", path, name));

      // The product of the dims must be the number of values; one that overflows never is.
      uint64_t count = 1;
      for (const int64_t dim : tensor.dims)
        if (dim < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count))
          count = UINT64_MAX;
      if (count != (end - begin) / sizeof(float))
        throw Error(fmt::format("{}: {} has {} bytes of values, not what its shape says", path,
                                name, end - begin));

      tensor.values.resize(count);
      read_at(fd.get(), std::as_writable_bytes(std::span(tensor.values)), data + begin, path);
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  } catch (const json::exception& fault) {
    throw Error(fmt::format(
        "{}: damaged: its header is no safetensors header ({}); copy or save the file again", path,
        json_fault(fault)));
  }
}

std::string read_safetensors(const std::string& path, const FileStamp& stamp,
                             const std::vector<EntryShape>& entries,
                             std::span<const StatePiece> pieces, const StateCounters& counters) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  check_stamp(fd.get(), stamp, path);
  try {
    const auto [header, data] = read_header(fd.get(), stamp.bytes, path);
    const auto offsets =
        match_all(header, entries, static_cast<uint64_t>(stamp.bytes) - data, path);

    // Everything fits: only from here on values are written.
    StateHasher hasher(entries.size());
    std::vector<float> buffer(kHashedRange);
    size_t next = 0;
    for (size_t e = 0; e < entries.size(); ++e) {
      const size_t first = next;
      while (next < pieces.size() && pieces[next].entry == e) ++next;
      hasher.add(entries[e], read_entry(fd.get(), data + offsets[e], entries[e].size(),
                                        pieces.subspan(first, next - first), buffer, path));
    }
    TUTTI_CHECK(next == pieces.size(), "piece {} of {} does not stand in the order of the entries",
                next, pieces.size());
    return hasher.finish(counters);
  } catch (const json::exception& fault) {
    damaged_checkpoint(path,
                       fmt::format("its header is no safetensors header ({})", json_fault(fault)));
  }
}

}  // namespace tutti
