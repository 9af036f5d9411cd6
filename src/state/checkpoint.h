// Checkpoints: safetensors files that other tools read, plus a manifest with hashes, in a folder that appears by one rename.
//
//   RUN/checkpoints/step-00000400/{state.safetensors, manifest.json}      RUN/checkpoints/latest -> step-00000400
#pragma once

#include <string>
#include <vector>

#include "state/state.h"

namespace tutti {

/// Writes the state under `folder` (RUN/checkpoints), atomically: a failure (full disk) leaves nothing behind and throws Error naming
/// the path. Returns the checkpoint's path. `job` is stored in the manifest.
std::string save_checkpoint(const std::string& folder, const State& state, const std::string& job_toml);

/// Fills the entries (matched by name, slot and shape) and the counters. Throws Error naming file and fault: missing, truncated, another
/// hash than the manifest's, tensors that the job does not have or lacks, a manifest of an unknown version.
void load_checkpoint(const std::string& checkpoint, State& state);

/// The newest complete checkpoint of a run; empty when there is none.
std::string latest_checkpoint(const std::string& folder);

}  // namespace tutti
