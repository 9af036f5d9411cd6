// What one rank does in a Reduce over the tree, as lists: all addresses, messages and additions are
// worked out once, at the start, and a pull walks them (comm/tree_pull.cc).
//
//   part    what I own of a source: floats of the unit, one run of memory in every contribution
//   block   a cut of an owner's slices (comm/tree_blocks.h)
//   piece   floats of a block that the same sources add to
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/pulls.h"
#include "comm/tree.h"

namespace tutti {

/// A message to or from another rank. The bytes of one that is sent are only read.
struct BlockMessage {
  int peer;
  uint32_t part;
  size_t block;
  std::span<std::byte> bytes;
};

struct FoldCall {
  float* out;
  std::vector<const float*> terms;
  std::vector<FoldStep> order;
  int64_t size;
};

/// A sum that waits until others have read what it overwrites.
struct SumAside {
  float* to;
  const float* from;
  int64_t floats;
};

/// Messages are in the order of their blocks; an `..._until` has how many of them, or of the folds,
/// come up to the end of each block.
struct TreeLists {
  std::vector<int> givers, takers;  ///< whose windows I read, who reads mine
  std::vector<BlockMessage> receives, sends;
  bool sends_first = false;  ///< what I send is overwritten by the sum
  std::vector<FoldCall> folds;
  std::vector<size_t> receives_until, folds_until;  ///< by block of mine
  std::vector<BlockMessage> returning, returned;    ///< others' blocks to me, mine to the others
  /// by block of any owner
  std::vector<size_t> sends_until, returning_until, returned_until;
  std::vector<SumAside> aside;
};

/// The arguments are those of make_sum_pull; `scratch` has at least tree_scratch_bytes() bytes.
TreeLists make_tree_lists(const SumTransfer& transfer, const TransferName& name,
                          Transport& transport, std::span<std::byte> arena,
                          std::vector<std::vector<float*>> levels, std::span<std::byte> scratch);
/// Private memory that rank `rank` needs (SumPull::scratch_bytes).
int64_t tree_scratch_bytes(const SumTransfer& transfer, int rank, bool windows);

}  // namespace tutti
