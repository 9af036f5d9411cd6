// What a checkpoint says of itself, in its manifest.json: the counters, the hash of the state, and
// size and hash of the file of tensors.
#pragma once

#include <string>

#include "state/safetensors.h"

namespace tutti {

inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kStateFile = "state.safetensors";

struct Manifest {
  StateCounters counters;
  std::string state_sha256;
  FileStamp state_file;
  std::string job_toml;
};

/// Writes and syncs CHECKPOINT/manifest.json.
void write_manifest(const std::string& checkpoint, const Manifest& manifest);

/// Throws an Error that names the file if it is missing, damaged or of another version.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace tutti
