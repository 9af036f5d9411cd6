// The safetensors format, float32 only: eight bytes with the length of the header (little-endian),
// a JSON header that is padded with spaces to a multiple of eight bytes, then the tensors without
// gaps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace tutti {

struct TensorShape {
  std::string name;
  std::vector<int64_t> dims;
  int64_t bytes() const;
};

/// What precedes the values of a file with these tensors, one after the other.
std::string safetensors_header(const std::vector<TensorShape>& tensors);

/// A tensor of a file: its type as the header has it, and its bytes of the file.
struct PlacedTensor {
  TensorShape shape;
  std::string type;
  int64_t begin = 0, end = 0;
};
struct TensorFile {
  Fd fd;
  int64_t bytes = 0;
  std::string header;  ///< with its length in front
  std::vector<PlacedTensor> tensors;
};
/// Opens any safetensors file and reads its header. Throws an Error that names the path: missing,
/// malformed, a tensor outside of the file, or of other bytes than its shape and type say.
TensorFile open_safetensors(const std::string& path);

/// Reads all of the bytes at an offset; an Error with the path where the file ends before them.
void read_at(int fd, std::span<std::byte> bytes, int64_t offset, const std::string& path);

/// Writes ranges of a file in ascending order, and has the disk follow: if the sync at the end did
/// it all, other ranks, which see this one's work in its processor time and its writes, would see
/// none meanwhile, and memory would fill with what is not written out yet.
class RangeWriter {
 public:
  /// Creates the file with `bytes` of room, or opens one that is there (0).
  RangeWriter(std::string path, int64_t bytes);
  void write(std::span<const std::byte> bytes, int64_t offset);
  /// Waits until all is on the disk.
  void sync();

 private:
  void write_back(int64_t from, int64_t to, unsigned flags);

  std::string path_;
  Fd fd_;
  // written and handed to the disk, and since then; from -1 on there is none
  int64_t before_ = -1, from_ = -1, to_ = -1;
};

/// Writes and syncs a new file, asking for each tensor's values once, in order.
void write_safetensors(const std::string& path, const std::vector<TensorShape>& tensors,
                       const std::function<std::span<const float>(size_t tensor)>& values);

/// A float32 tensor of any safetensors file.
struct FileTensor {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<float> values;
};
/// The tensors whose names `wanted` picks, in the order of the names. Throws an Error that names
/// the path: what open_safetensors refuses, or a picked tensor that is not F32.
std::vector<FileTensor> read_tensors(const std::string& path,
                                     const std::function<bool(const std::string&)>& wanted);

}  // namespace tutti
