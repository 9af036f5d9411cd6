// Strings are hashed behind their length, so that no two states run together to the same bytes.
#include "state/state.h"

#include <algorithm>

#include "base/hash.h"

namespace tutti {
namespace {

constexpr size_t kRangeFloats = (size_t{1} << 20) / sizeof(float);

void add_text(Sha256& sha, std::string_view text) {
  sha.add(uint64_t{text.size()});
  sha.add(text);
}

}  // namespace

std::string state_hash(const State& state) {
  Sha256 sha;
  sha.add(uint64_t{state.entries.size()});
  for (const StateEntry& entry : state.entries) {
    add_text(sha, entry.name);
    add_text(sha, entry.slot);
    add_text(sha, "F32");
    sha.add(uint64_t{entry.dims.size()});
    for (int64_t dim : entry.dims) sha.add(static_cast<uint64_t>(dim));
    for (size_t begin = 0; begin < entry.values.size(); begin += kRangeFloats) {
      const size_t count = std::min(kRangeFloats, entry.values.size() - begin);
      const Digest digest = sha256(std::as_bytes(entry.values.subspan(begin, count)));
      sha.add(std::as_bytes(std::span(digest)));
    }
  }
  sha.add(static_cast<uint64_t>(state.counters.step));
  sha.add(static_cast<uint64_t>(state.counters.cursor));
  add_text(sha, state.counters.schedule);
  return hex(sha.finish());
}

}  // namespace tutti
