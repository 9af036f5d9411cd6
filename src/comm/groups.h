// Who reads whose memory and who sends to whom in a reduction. Ranks form groups of equal size; inside a group windows
// are read, between groups messages travel, and only between the ranks with the same place in their groups (partners).
//
//   one host with windows     one group of all ranks: no messages
//   no windows                N groups of one: every pair of ranks are partners
//   H hosts with windows      H groups: two levels. One partial per subtree of the group's lanes leaves a group
//
// Hosts that differ in size, or whose lanes are not contiguous, fall back to groups of one.
#pragma once

#include <vector>

#include "comm/reduction.h"

namespace tutti {

struct Group {
  std::vector<int> ranks;       ///< ascending
  std::vector<Range> subtrees;  ///< the maximal subtrees of the group's lanes: what leaves it
};

struct Groups {
  std::vector<Group> all;
  std::vector<int> of;     ///< group of every rank
  std::vector<int> place;  ///< every rank's place in its group
  int size() const { return static_cast<int>(all.size()); }
  int per_group() const { return static_cast<int>(all[0].ranks.size()); }
};

Groups groups_of(const ReductionSpec& spec, bool windows);

/// The range of the result each rank folds: its slice, or everything at rank 0.
std::vector<Range> fold_slices(const ReductionSpec& spec);

}  // namespace tutti
