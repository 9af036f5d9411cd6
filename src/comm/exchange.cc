// Messages only, because what is exchanged is stored in private memory. Receives are posted before
// sends, and everybody begins with another member.
#include "comm/exchange.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/tree.h"
#include "grid/mesh.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

std::span<std::byte> bytes(float* at, int64_t floats) {
  return std::as_writable_bytes(std::span(at, floats));
}

}  // namespace

ColumnExchange::ColumnExchange(uint32_t id, std::vector<int> ranks, int columns,
                               Transport& transport)
    : id_(id), ranks_(std::move(ranks)), columns_(columns), transport_(transport) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), transport.rank());
  TUTTI_CHECK(found != ranks_.end(), "exchange {}: rank {} takes no part", id, transport.rank());
  TUTTI_CHECK(members() <= columns, "exchange {}: {} columns on {} ranks", id, columns, members());
  me_ = static_cast<int>(found - ranks_.begin());
}

void ColumnExchange::gather(std::span<const std::byte* const> parts, size_t part_bytes,
                            std::byte* whole, uint64_t sequence, const Patience& patience,
                            const std::function<void()>& begun) {
  const Range mine = columns_of(me_);
  TUTTI_CHECK(static_cast<int64_t>(parts.size()) == mine.size(),
              "exchange {}: {} parts of {} columns", id_, parts.size(), mine.size());
  const auto place = [&](Range columns) {
    return std::span(whole + columns.begin * part_bytes, columns.size() * part_bytes);
  };
  named(fmt::format("gather of exchange {}", id_), sequence, [&] {
    const Tag tag{id_, 0, sequence};
    Posted posted(transport_);

    // The columns of a member are next to each other in `whole`: one message per
    // member, received in place.
    for (int k = 1; k < members(); ++k) {
      const int from = (me_ + members() - k) % members();
      posted.recv(ranks_[from], tag, place(columns_of(from)));
    }

    // My own parts go to their place first, and are sent from there.
    for (size_t c = 0; c < parts.size(); ++c) {
      std::byte* to = place(mine).data() + c * part_bytes;
      if (parts[c] != to) std::memcpy(to, parts[c], part_bytes);
    }

    for (int k = 1; k < members(); ++k)
      posted.send(ranks_[(me_ + k) % members()], tag, place(mine));
    if (begun) begun();
    posted.wait_all(patience);
  });
}

// Quantities: S columns, and as many parts of floats / S each; part c of every sum
// belongs to column c.
//   1. leaves of my parts: my own columns, and the partials of the others, which arrive in scratch
//   2. for each other member: my columns are folded, subtree by subtree, over the parts that it
//      owns. The partial is left in the first column of the subtree, and sent from there
//   3. my parts: all leaves are folded in the order of the tree over S columns
// Step 2 overwrites only the others' parts of my sums, so step 3 still finds my columns as they
// were. Their subtrees come out of the same fold, with the same additions.
void ColumnExchange::scatter(std::span<float* const> sums, int64_t floats,
                             std::span<float* const> parts, uint64_t sequence,
                             const Patience& patience, std::span<std::byte> scratch,
                             const std::function<void()>& begun) {
  const Range mine = columns_of(me_);
  TUTTI_CHECK(static_cast<int64_t>(sums.size()) == mine.size() && parts.size() == sums.size(),
              "exchange {}: {} sums and {} parts of {} columns", id_, sums.size(), parts.size(),
              mine.size());
  TUTTI_CHECK(floats % columns_ == 0, "exchange {}: {} floats in {} parts", id_, floats, columns_);
  TUTTI_CHECK(scratch_bytes(columns_, members(), floats) <= static_cast<int64_t>(scratch.size()),
              "exchange {}: its scratch is too small", id_);
  const int64_t part = floats / columns_;
  named(fmt::format("scatter of exchange {}", id_), sequence, [&] {
    struct Leaf {
      Range columns;
      const float* base;  // of my first column's part
    };
    std::vector<Leaf> leaves;
    for (int64_t c = mine.begin; c < mine.end; ++c) {
      leaves.push_back({{c, c + 1}, sums[c - mine.begin] + mine.begin * part});
    }

    Posted arriving(transport_), leaving(transport_);
    auto* free = reinterpret_cast<float*>(scratch.data());
    for (int k = 1; k < members(); ++k) {
      const int from = (me_ + members() - k) % members();
      uint32_t number = 0;
      for (const Range& tree : subtrees(columns_of(from), columns_)) {
        arriving.recv(ranks_[from], {id_, number++, sequence}, bytes(free, mine.size() * part));
        leaves.push_back({tree, free});
        free += mine.size() * part;
      }
    }

    // The subtrees are numbered alike by sender and receiver.
    for (int k = 1; k < members(); ++k) {
      const int to = (me_ + k) % members();
      const Range theirs = columns_of(to);
      uint32_t number = 0;
      for (const Range& tree : subtrees(mine, columns_)) {
        std::vector<const float*> terms;
        std::vector<Range> ranges;
        for (int64_t c = tree.begin; c < tree.end; ++c) {
          terms.push_back(sums[c - mine.begin] + theirs.begin * part);
          ranges.push_back({c, c + 1});
        }
        float* sum = sums[tree.begin - mine.begin] + theirs.begin * part;
        fold(sum, terms, fold_order(ranges, tree), theirs.size() * part);
        leaving.send(ranks_[to], {id_, number++, sequence}, bytes(sum, theirs.size() * part));
      }
    }

    // Leaves came in the order of the members' turns; the tree wants them in column order.
    std::sort(leaves.begin(), leaves.end(),
              [](const Leaf& a, const Leaf& b) { return a.columns.begin < b.columns.begin; });
    std::vector<Range> ranges;
    for (const Leaf& leaf : leaves) ranges.push_back(leaf.columns);
    const std::vector<FoldStep> order = fold_order(ranges, {0, columns_});

    // Nothing more is owed to the others; only now are theirs waited for.
    if (begun) begun();
    arriving.wait_all(patience);

    for (size_t c = 0; c < parts.size(); ++c) {
      std::vector<const float*> terms;
      for (const Leaf& leaf : leaves) terms.push_back(leaf.base + c * part);
      fold(parts[c], terms, order, part);
    }
    leaving.wait_all(patience);
  });
}

int64_t ColumnExchange::scratch_bytes(int columns, int ranks, int64_t floats) {
  return arriving_parts(columns, ranks) * (floats / columns) * kFloat;
}

}  // namespace tutti
