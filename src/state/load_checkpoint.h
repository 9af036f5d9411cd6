// Reading a checkpoint: into a job's state, or to look at it whatever job it is of. Everything that
// is read is compared with the hashes of the manifest.
#pragma once

#include <string>
#include <vector>

#include "state/manifest.h"
#include "state/safetensors.h"

namespace tutti {

/// An entry of a checkpoint, and where it is.
struct SavedEntry {
  EntryShape shape;
  size_t file = 0;  ///< of the manifest's
  int64_t offset = 0;
  std::vector<Digest> ranges;
  int64_t size() const { return shape.size(); }
  /// The elements of its hashed range `number`.
  Range range(size_t number) const;
};

class CheckpointReader {
 public:
  /// Opens the files and compares their sizes and headers with the manifest. Throws an Error that
  /// names file and fault: missing, truncated, altered, or a manifest of an unknown version.
  explicit CheckpointReader(const std::string& checkpoint);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// In model order, the slots of a parameter together.
  const std::vector<SavedEntry>& entries() const { return entries_; }
  /// A hashed range of an entry, until the next call. Throws an Error that names the file and the
  /// elements where they are not those of the manifest.
  std::span<const float> read(const SavedEntry& entry, size_t number);
  /// A hashed range of an entry, to be read into memory of its size.
  struct Wanted {
    const SavedEntry& entry;
    size_t number;
    std::span<float> values;
  };
  void read(std::span<const Wanted> ranges) const;

 private:
  std::string path_;
  Manifest manifest_;
  std::vector<TensorFile> files_;
  std::vector<SavedEntry> entries_;
  std::vector<float> buffer_;
};

/// Reads and checks all of a checkpoint. What is wrong with it; empty where nothing is.
std::string fault_of_checkpoint(const std::string& checkpoint);

/// Fills the entries (matched by name, slot and shape) and the counters. Throws an Error that names
/// file and fault: missing, truncated, other hashes than the manifest's, a manifest of an unknown
/// version; or at once every tensor that the job does not have, lacks or shapes otherwise. No value
/// is written before all but the values has been checked. Values are read to their places and
/// checked there: where some are damaged, nobody may use any.
void load_checkpoint(const std::string& checkpoint, State& state);
/// The same for a rank that holds pieces of the entries, in the order of `entries`: it reads and
/// checks the hashed ranges of which it holds something. Returns the counters.
StateCounters load_checkpoint(const std::string& checkpoint, const std::vector<EntryShape>& entries,
                              std::span<const StatePiece> pieces);

}  // namespace tutti
