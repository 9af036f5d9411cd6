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
  /// Of parts[part], which this rank writes. Asked for once each, in their order.
  std::function<std::span<const float>(size_t part)> values;
  int rank = 0;
  TellAll tell_all;
};

/// What is saved besides the state, and where.
struct SaveRequest {
  std::string folder{};  ///< RUN/checkpoints
  StateCounters counters{};
  std::string job_toml{};
  std::string build{};  ///< of the program: for people
  /// Called by the first rank once the checkpoint is complete: older ones may go.
  std::function<void(const std::string& saved)> prune{};
};

/// Writes the state, atomically. Collective; returns the path of the checkpoint. A failure of any
/// rank (full disk) leaves nothing behind and throws an Error that names the path, on all ranks; a
/// kill leaves at most the hidden names `.writing` and `.latest`, which the next save removes. A
/// checkpoint of the same step is replaced at once. One checkpoint is written at a time in a folder.
std::string save_checkpoint(const SaveRequest& request, const CheckpointWriter& writer);
/// The same by one rank that has everything.
std::string save_checkpoint(const std::string& folder, const State& state,
                            const std::string& job_toml);

/// Removes all complete checkpoints but the `count` of the highest steps. One that is being removed
/// is first hidden: a kill leaves `.removing`, which the next save removes.
void keep_last(const std::string& folder, int64_t count);

/// Removes all complete checkpoints but the one at `kept`, likewise.
void keep_only(const std::string& folder, const std::string& kept);

/// The complete checkpoints, by step: those that have a manifest.
std::map<int64_t, std::string> complete_checkpoints(const std::string& folder);
/// The folders of checkpoints, by step, complete or not.
std::map<int64_t, std::string> checkpoint_folders(const std::string& folder);
/// Lets `latest` lead to a checkpoint.
void link_latest(const std::string& folder, const std::string& checkpoint);
/// The path of the one of a step. Throws an Error that names those that there are.
std::string checkpoint_of_step(const std::string& folder, int64_t step);
/// The path of the one of the highest step; empty when there is none.
std::string latest_checkpoint(const std::string& folder);

}  // namespace tutti
