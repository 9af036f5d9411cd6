// Checkpoints: safetensors files that other tools read, plus a manifest with hashes, in a folder
// that appears by one rename.
//
//   RUN/checkpoints/step-00000400/parameters.safetensors    every parameter and buffer, whole
//                                 m.safetensors ...         the optimizer's slots, by the same names
//                                 manifest.json
//   RUN/checkpoints/latest -> step-00000400
//
// All ranks write, each what it holds, into files whose sizes are known beforehand; and each reads
// and checks what it needs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "state/manifest.h"

namespace tutti {

/// What a rank tells all others, and what they tell it, in rank order. Collective; it waits for as
/// long as the others work.
using TellAll = std::function<std::vector<std::string>(const std::string& mine)>;

/// Elements of an entry, within one hashed range, and the rank that writes them.
struct SavedPart {
  size_t entry = 0;
  Range range;
  int writer = 0;
};

/// One of the ranks that write a checkpoint side by side. The others have the same entries, parts,
/// counters and job.
struct CheckpointWriter {
  const std::vector<EntryShape>& entries;
  /// All elements of all entries, each once, ascending by entry and element.
  const std::vector<SavedPart>& parts;
  /// Of a part that this rank writes.
  std::function<std::span<const float>(size_t entry, Range range)> values;
  int rank = 0;
  TellAll tell_all;
};

/// Writes the state under `folder` (RUN/checkpoints), atomically. Collective; returns the path of
/// the checkpoint. A failure of any rank (full disk) leaves nothing behind and throws an Error that
/// names the path, on all ranks; a kill leaves at most the hidden names `.writing` and `.latest`,
/// which the next save removes. A checkpoint of the same step is replaced at once. One checkpoint is
/// written at a time in a folder. `job_toml` is stored in the manifest.
std::string save_checkpoint(const std::string& folder, const CheckpointWriter& writer,
                            const StateCounters& counters, const std::string& job_toml);
/// The same by one rank that has everything.
std::string save_checkpoint(const std::string& folder, const State& state,
                            const std::string& job_toml);

/// Fills the entries (matched by name, slot and shape) and the counters. Throws an Error that names
/// file and fault: missing, truncated, other hashes than the manifest's, a manifest of an unknown
/// version; or at once every tensor that the job does not have, lacks or shapes otherwise. No value
/// is written before all but the values has been checked; where some of them are damaged, those
/// that were read before may have been.
void load_checkpoint(const std::string& checkpoint, State& state);
/// The same for a rank that holds pieces of the entries, in the order of `entries`: it reads and
/// checks the hashed ranges of which it holds something. Returns the counters.
StateCounters load_checkpoint(const std::string& checkpoint, const std::vector<EntryShape>& entries,
                              std::span<const StatePiece> pieces);

/// The path of the complete checkpoint of the highest step; empty when there is none.
std::string latest_checkpoint(const std::string& folder);

}  // namespace tutti
