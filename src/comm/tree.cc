// An accumulator of the tree is known by the first lane of its range: the left side of an addition
// keeps that lane, so it names the same accumulator before and after.
#include "comm/tree.h"

#include <map>

namespace tutti {

std::vector<FoldStep> fold_order(const std::vector<Range>& parts, Range whole) {
  // The parts as if the subtree began at lane 0, and where each of them is in the list.
  std::vector<Range> moved;
  std::map<int64_t, int> index;
  for (const Range& part : parts) {
    index[part.begin - whole.begin] = static_cast<int>(moved.size());
    moved.push_back({part.begin - whole.begin, part.end - whole.begin});
  }

  std::vector<FoldStep> order;
  for (const TreeSum& sum : tree_sums(moved, whole.size())) {
    order.push_back({index.at(sum.left.begin), index.at(sum.right.begin)});
  }
  return order;
}

std::vector<FoldStep> fold_order_of_groups(const std::vector<FoldStep>& order, int terms,
                                           int count) {
  std::vector<FoldStep> all;
  for (int group = 0; group < count; ++group) {
    for (const FoldStep& step : order)
      all.push_back({step.left + group * terms, step.right + group * terms});
  }

  // The last addition of a group leaves its sum in its left term; a group of one term is its own
  // sum.
  const int root = order.empty() ? 0 : order.back().left;
  for (int group = 1; group < count; ++group) all.push_back({root, root + group * terms});
  return all;
}

}  // namespace tutti
