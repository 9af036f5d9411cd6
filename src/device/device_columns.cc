// What is sent and folded in an exchange of columns. For the others' parts each maximal subtree of
// my columns is folded into the first of them and sent from there, one partial per subtree. My own
// parts are finished from the columns themselves: fold_order makes the same additions of single
// columns as of folded subtrees.
#include "device/device_columns.h"

#include <algorithm>

#include "base/error.h"
#include "comm/tree.h"

namespace tutti {

DeviceColumns DeviceColumns::gather(const Members& members, const std::vector<std::byte*>& parts,
                                    int64_t bytes, std::byte* whole) {
  DeviceColumns exchange(members);
  const Range mine = exchange.columns_of(exchange.me());
  TUTTI_CHECK(static_cast<int64_t>(parts.size()) == mine.size(), "{} parts of {} columns",
              parts.size(), mine.size());
  const auto place = [&](int64_t column) { return whole + column * bytes; };
  const auto size = [&](Range columns) { return static_cast<size_t>(columns.size() * bytes); };
  for (size_t c = 0; c < parts.size(); ++c)
    if (std::byte* to = place(mine.begin + static_cast<int64_t>(c)); parts[c] != to)
      exchange.own_.push_back({to, parts[c], static_cast<size_t>(bytes)});

  // My columns go to members me + 1, me + 2, ..., so that no member is everyone's first. They are
  // adjacent in `whole`, so they are one message.
  const int ranks = exchange.ranks();
  for (int k = 1; k < ranks; ++k) {
    const int to = (exchange.me() + k) % ranks, from = (exchange.me() + ranks - k) % ranks;
    exchange.sends_.push_back({to, place(mine.begin), size(mine)});
    const Range theirs = exchange.columns_of(from);
    exchange.receives_.push_back({from, place(theirs.begin), size(theirs)});
  }
  return exchange;
}

DeviceColumns DeviceColumns::scatter(const Members& members, const std::vector<float*>& sums,
                                     int64_t floats, const std::vector<std::byte*>& parts,
                                     std::byte* scratch, Precision precision) {
  DeviceColumns exchange(members);
  exchange.precision_ = precision;
  const int columns = members.columns, ranks = exchange.ranks(), me = exchange.me();
  const Range mine = exchange.columns_of(me);
  TUTTI_CHECK(static_cast<int64_t>(sums.size()) == mine.size() && parts.size() == sums.size(),
              "{} sums and {} parts of {} columns", sums.size(), parts.size(), mine.size());
  TUTTI_CHECK(floats % columns == 0, "{} floats in {} parts", floats, columns);

  const int64_t part = floats / columns;
  const auto sum_of = [&](int64_t column) {
    return sums[static_cast<size_t>(column - mine.begin)];
  };
  const auto bytes = [&](Range of) {
    return static_cast<size_t>(of.size() * part) * sizeof(float);
  };

  // What the sum of my parts is made of: my columns one by one, and the others' subtrees as they
  // arrive. `base` is where the leaf's share of my parts begins.
  struct Leaf {
    Range columns;
    float* base;  // of my first column's part
  };
  std::vector<Leaf> leaves;
  for (int64_t c = mine.begin; c < mine.end; ++c)
    leaves.push_back({{c, c + 1}, sum_of(c) + mine.begin * part});
  auto* free = reinterpret_cast<float*>(scratch);
  for (int k = 1; k < ranks; ++k) {
    const int to = (me + k) % ranks, from = (me + ranks - k) % ranks;
    for (const Range& tree : subtrees(exchange.columns_of(from), columns)) {
      exchange.receives_.push_back({from, free, bytes(mine)});
      leaves.push_back({tree, free});
      free += mine.size() * part;
    }

    // The share of the receiver's parts in my subtrees. Only subtrees of several columns need
    // a fold.
    const Range theirs = exchange.columns_of(to);
    for (const Range& tree : subtrees(mine, columns)) {
      PlacedFold fold{sum_of(tree.begin) + theirs.begin * part, {}, {}, theirs.size() * part};
      std::vector<Range> ranges;
      for (int64_t c = tree.begin; c < tree.end; ++c) {
        fold.terms.push_back(sum_of(c) + theirs.begin * part);
        ranges.push_back({c, c + 1});
      }
      fold.order = fold_order(ranges, tree);
      exchange.sends_.push_back({to, fold.out, bytes(theirs)});
      if (fold.terms.size() > 1) exchange.before_.push_back(std::move(fold));
    }
  }

  // The tree's order is that of the columns, whoever has them.
  std::sort(leaves.begin(), leaves.end(),
            [](const Leaf& a, const Leaf& b) { return a.columns.begin < b.columns.begin; });
  std::vector<Range> ranges;
  for (const Leaf& leaf : leaves) ranges.push_back(leaf.columns);
  const std::vector<FoldStep> order = fold_order(ranges, {0, columns});
  for (size_t c = 0; c < parts.size(); ++c) {
    const int64_t at = static_cast<int64_t>(c) * part;
    PartFold fold{{reinterpret_cast<float*>(parts[c]), {}, order, part}};
    // A 16-bit part is rounded once, from a float32 sum in a place that nobody needs any more.
    if (precision != Precision::kFloat32) {
      fold.narrow = parts[c];
      fold.out = sums[0] + mine.begin * part + at;
    }
    for (const Leaf& leaf : leaves) fold.terms.push_back(leaf.base + at);
    exchange.after_.push_back(std::move(fold));
  }
  return exchange;
}

void DeviceColumns::run(Stream stream) {
  for (const PlacedCopy& own : own_) m_.device.copy(stream, own.to, own.from, own.bytes);

  const auto put = [&](const PlacedFold& fold) {
    m_.kernels.fold(stream, fold.out, fold.terms, fold.order, fold.size);
  };
  for (const PlacedFold& fold : before_) put(fold);
  if (!sends_.empty() || !receives_.empty()) m_.group->exchange(stream, sends_, receives_);
  for (const PartFold& fold : after_) {
    put(fold);
    if (fold.narrow != nullptr)
      m_.kernels.cast(stream, fold.out, fold.narrow, fold.size, precision_);
  }
}

}  // namespace tutti
