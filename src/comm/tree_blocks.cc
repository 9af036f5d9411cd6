// Blocks follow from the slice alone, so sender and owner number them alike without a message.
#include "comm/tree_blocks.h"

#include <algorithm>

namespace tutti {

namespace {

/// A slice is cut into up to four blocks of at least this many floats: the first is folded and on
/// its way back while the next arrives; more blocks cost more messages than they hide.
constexpr int64_t kBlockFloats = 512 * 1024;

}  // namespace

std::vector<SumBlock> blocks_of(const SumTransfer& transfer, size_t member) {
  std::vector<SumBlock> blocks;
  for (size_t u = 0; u < transfer.units.size(); ++u) {
    const Range slice = transfer.units[u].slices[member];
    const int64_t size = std::max(kBlockFloats, align_up((slice.size() + 3) / 4, kAlign));
    for (int64_t at = slice.begin; at < slice.end; at += size)
      blocks.push_back({u, {at, std::min(at + size, slice.end)}});
  }
  return blocks;
}

std::vector<GivenTerm> given(const SumTransfer& transfer, int from, size_t owner) {
  std::vector<GivenTerm> all;
  const std::vector<SumBlock> blocks = blocks_of(transfer, owner);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto& sources = transfer.units[blocks[b].unit].sources;
    for (size_t s = 0; s < sources.size(); ++s) {
      const Range floats = overlap(blocks[b].floats, sources[s].to);
      for (size_t t = 0; t < sources[s].terms.size() && !floats.empty(); ++t)
        if (sources[s].terms[t].rank == from) all.push_back({b, blocks[b].unit, s, t, floats});
    }
  }
  return all;
}

}  // namespace tutti
