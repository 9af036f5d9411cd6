// Checkpoints: safetensors files that other tools read, plus a manifest with hashes, in a folder
// that appears by one rename.
//
//   RUN/checkpoints/step-00000400/{state.safetensors, manifest.json}
//   RUN/checkpoints/latest -> step-00000400
#pragma once

#include <string>

#include "state/state.h"

namespace tutti {

/// Writes the state under `folder` (RUN/checkpoints), atomically. A failure (full disk) leaves
/// nothing behind and throws an Error that names the path; a kill leaves at most the hidden names
/// `.writing` and `.latest`, which the next save removes. A checkpoint of the same step is replaced
/// at once. One writer at a time per folder. Returns the path of the checkpoint. `job_toml` is
/// stored in the manifest. The source is asked for each entry once, in order.
std::string save_checkpoint(const std::string& folder, const StateSource& source,
                            const std::string& job_toml);
std::string save_checkpoint(const std::string& folder, const State& state,
                            const std::string& job_toml);

/// Fills the entries (matched by name, slot and shape) and the counters. Throws an Error that names
/// file and fault: missing, truncated, another hash than the manifest's, a manifest of an unknown
/// version; or at once every tensor that the job does not have, lacks or shapes otherwise. No value
/// is written before the file's hash and all shapes have been checked.
void load_checkpoint(const std::string& checkpoint, State& state);
/// The same for a rank that holds pieces of the entries; `pieces` are in the order of `entries`.
/// Returns the counters.
StateCounters load_checkpoint(const std::string& checkpoint, const std::vector<EntryShape>& entries,
                              std::span<const StatePiece> pieces);

/// The path of the complete checkpoint of the highest step; empty when there is none.
std::string latest_checkpoint(const std::string& folder);

}  // namespace tutti
