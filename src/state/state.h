// The state of a run: every value that outlives a step, by name. The hash and the checkpoint are
// made from the same list, so what is hashed is what is saved.
//
//   entry   one parameter's values in one slot, whole
//   piece   what one rank holds of an entry: all of it, or a range (a ZeRO slice)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "grid/grid.h"

namespace tutti {

/// The slot of a parameter's own values, next to those of the optimizer ("m", "v").
inline constexpr const char* kParameterSlot = "parameter";

/// An entry without its values. `slot` is kParameterSlot or a slot of the optimizer.
struct EntryShape {
  std::string name, slot;
  std::vector<int64_t> dims;
  int64_t size() const;  ///< floats
  bool operator==(const EntryShape&) const = default;
};
std::string title(const EntryShape& entry);  ///< "head.bias (m)"

/// One parameter's values in one slot, contiguous, without padding.
struct StateEntry {
  std::string name, slot;
  std::vector<int64_t> dims;
  std::span<float> values;
};

struct StatePiece {
  size_t entry = 0;  ///< its place in the list of entries
  Range range;       ///< elements of the entry
  std::span<float> values;
};

/// Values that are not tensors.
struct StateCounters {
  int64_t step = 0;    ///< steps committed
  int64_t cursor = 0;  ///< samples consumed
  /// the state of a schedule that has one; empty for those that are functions of the step
  std::string schedule;
};

struct State {
  std::vector<StateEntry> entries;  ///< in model order, slots of a parameter together
  StateCounters counters;
};

/// The entries without their values.
std::vector<EntryShape> shapes_of(const State& state);

/// Floats of a range that is hashed by itself: 1 MiB. Ranks that hold different ranges of an entry
/// can so hash what they have.
inline constexpr int64_t kHashedRange = (int64_t{1} << 20) / static_cast<int64_t>(sizeof(float));
/// The range that has this element of an entry.
Range hashed_range(int64_t element, const EntryShape& entry);
/// The digest of each of an entry's ranges.
std::vector<Digest> range_digests(std::span<const float> values);

/// SHA-256 over the counters and the ordered list of (name, slot, dtype, shape, SHA-256
/// of each 1 MiB range).
class StateHasher {
 public:
  explicit StateHasher(size_t entries);
  void add(const EntryShape& entry, std::span<const Digest> ranges);
  std::string finish(const StateCounters& counters);  ///< 64 hex digits

 private:
  Sha256 sha_;
};

std::string state_hash(const State& state);

}  // namespace tutti
