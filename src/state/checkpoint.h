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
#include <map>
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

/// Removes all complete checkpoints but the `count` of the highest steps. One that is being removed
/// is first hidden: a kill leaves `.removing`, which the next save removes.
void keep_last(const std::string& folder, int64_t count);

/// The complete checkpoints, by step: those that have a manifest.
std::map<int64_t, std::string> complete_checkpoints(const std::string& folder);
/// The path of the one of the highest step; empty when there is none.
std::string latest_checkpoint(const std::string& folder);

}  // namespace tutti
