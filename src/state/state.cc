// Every string is hashed after its length, so that no two states run together to the same bytes.
#include "state/state.h"

#include <algorithm>

namespace tutti {
namespace {

void add_text(Sha256& sha, std::string_view text) {
  sha.add(uint64_t{text.size()});
  sha.add(text);
}

}  // namespace

int64_t EntryShape::size() const {
  int64_t size = 1;
  for (int64_t dim : dims) size *= dim;
  return size;
}

std::string title(const EntryShape& entry) { return entry.name + " (" + entry.slot + ")"; }

Range hashed_range(int64_t element, const EntryShape& entry) {
  const int64_t begin = element / kHashedRange * kHashedRange;
  return {begin, std::min(begin + kHashedRange, entry.size())};
}

std::vector<EntryShape> shapes_of(const State& state) {
  std::vector<EntryShape> shapes;
  for (const StateEntry& entry : state.entries)
    shapes.push_back({entry.name, entry.slot, entry.dims});
  return shapes;
}

std::vector<Digest> range_digests(std::span<const float> values) {
  std::vector<std::span<const std::byte>> ranges;
  for (size_t begin = 0; begin < values.size(); begin += kHashedRange)
    ranges.push_back(std::as_bytes(
        values.subspan(begin, std::min<size_t>(kHashedRange, values.size() - begin))));
  return sha256_each(ranges);
}

StateHasher::StateHasher(size_t entries) { sha_.add(uint64_t{entries}); }

void StateHasher::add(const EntryShape& entry, std::span<const Digest> ranges) {
  // The order of these is part of the hash that runs print: a change makes all earlier hashes
  // differ.
  add_text(sha_, entry.name);
  add_text(sha_, entry.slot);
  add_text(sha_, "F32");
  sha_.add(uint64_t{entry.dims.size()});
  for (int64_t dim : entry.dims) sha_.add(static_cast<uint64_t>(dim));
  for (const Digest& digest : ranges) sha_.add(std::as_bytes(std::span(digest)));
}

std::string StateHasher::finish(const StateCounters& counters) {
  sha_.add(static_cast<uint64_t>(counters.step));
  sha_.add(static_cast<uint64_t>(counters.cursor));
  add_text(sha_, counters.schedule);
  return hex(sha_.finish());
}

std::string state_hash(const State& state) {
  StateHasher hasher(state.entries.size());
  for (const StateEntry& entry : state.entries)
    hasher.add({entry.name, entry.slot, entry.dims}, range_digests(entry.values));
  return hasher.finish(state.counters);
}

}  // namespace tutti
