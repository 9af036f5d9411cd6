// An accumulator of the tree is known by the first lane of its range: the left side of an addition
// keeps it.
#include "comm/tree.h"

#include <map>

namespace tutti {

std::vector<FoldStep> fold_order(const std::vector<Range>& parts, Range whole) {
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
  const int root = order.empty() ? 0 : order.back().left;
  for (int group = 1; group < count; ++group) all.push_back({root, root + group * terms});
  return all;
}

}  // namespace tutti
