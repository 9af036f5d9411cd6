// What a checkpoint says of itself, in its manifest.json: the counters, the hash of the state, and
// of every file its size, the hash of its header and those of each 1 MiB of every tensor. Ranks
// write side by side and read what they need, so a file has no hash of its own as a whole.
#pragma once

#include <string>
#include <vector>

#include "state/state.h"

namespace tutti {

inline constexpr int kManifestVersion = 2;
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kParametersFile = "parameters.safetensors";
/// Of a slot of the optimizer: "m.safetensors".
std::string file_of_slot(const std::string& slot);

struct SavedTensor {
  std::string name;
  std::vector<Digest> ranges;  ///< of kHashedRange floats each
};
struct SavedFile {
  std::string name;
  int64_t bytes = 0;
  Digest header{};
  std::vector<SavedTensor> tensors;  ///< in the order of the state's entries
};
struct Manifest {
  StateCounters counters;
  std::string state_sha256;
  std::vector<SavedFile> files;
  std::string job_toml, build;
};

/// An Error that names a file of a checkpoint, what is wrong with it, and how to go on without it.
[[noreturn]] void damaged_checkpoint(const std::string& file, const std::string& why);
/// "remove the folder ... to go on from the checkpoint before it"
std::string way_around(const std::string& checkpoint);

/// Writes and syncs CHECKPOINT/manifest.json.
void write_manifest(const std::string& checkpoint, const Manifest& manifest);

/// Throws an Error that names the file if it is missing, damaged or of another version.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace tutti
