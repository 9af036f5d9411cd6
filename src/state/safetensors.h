// The safetensors format, float32 only: eight bytes with the length of the header (little-endian),
// a JSON header that is padded with spaces to a multiple of eight bytes, then the tensors without
// gaps. A tensor is named "<parameter>", or "<parameter>@<slot>" for a slot of the optimizer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "state/state.h"

namespace tutti {

/// What a manifest says of a file.
struct FileStamp {
  int64_t bytes = 0;
  std::string sha256;  ///< hex
};

/// An Error that names a file of a checkpoint, what is wrong with it, and how to go on without it.
[[noreturn]] void damaged_checkpoint(const std::string& file, const std::string& why);

struct WrittenState {
  FileStamp file;
  std::string state_sha256;  ///< StateHasher's
};
/// Writes and syncs a new file, asking the source for each entry once, in order.
WrittenState write_safetensors(const std::string& path, const StateSource& source);

/// A float32 tensor of any safetensors file.
struct FileTensor {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<float> values;
};
/// The tensors whose names `wanted` picks, in the order of the names. Throws an Error that names
/// the path: missing, malformed, truncated, or a picked tensor that is not F32.
std::vector<FileTensor> read_tensors(const std::string& path,
                                     const std::function<bool(const std::string&)>& wanted);

/// Fills the pieces of the entries; both are in order. Returns the hash of the whole state in
/// the file, with these counters. Throws an Error that names the path: another size or hash
/// than the stamp's, a malformed header, or at once every tensor that is missing, of another
/// shape or type, or not among the entries. Nothing is filled before all that has been checked.
/// No tensor is held whole.
std::string read_safetensors(const std::string& path, const FileStamp& stamp,
                             const std::vector<EntryShape>& entries,
                             std::span<const StatePiece> pieces, const StateCounters& counters);

}  // namespace tutti
