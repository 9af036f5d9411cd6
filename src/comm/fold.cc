// Picks the instruction set, recognises the small trees, which have loops of their own, and
// evaluates all other trees block by block in the first-level cache.
#include "comm/fold.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/processor.h"
#include "comm/fold_kernels.h"

namespace tutti {
namespace {

void add(float* out, const float* a, const float* b, int64_t n) {
  static constexpr decltype(&isa_portable::add) kAdd[] = TUTTI_TABLE_OF(add);
  on_path(kAdd)(out, a, b, n);
}

bool same(std::span<const FoldStep> order, std::initializer_list<FoldStep> other) {
  return std::equal(
      order.begin(), order.end(), other.begin(), other.end(),
      [](const FoldStep& a, const FoldStep& b) { return a.left == b.left && a.right == b.right; });
}

std::optional<TreeShape> shape_of(std::span<const FoldStep> order) {
  if (same(order, {{0, 1}})) return TreeShape::kPair;
  if (same(order, {{0, 1}, {0, 2}})) return TreeShape::kLeft3;
  if (same(order, {{1, 2}, {0, 1}})) return TreeShape::kRight3;
  if (same(order, {{0, 1}, {2, 3}, {0, 2}})) return TreeShape::kBalanced4;
  return std::nullopt;
}

// Any tree, one block of kBlock floats after the other. Every addition of a block leaves its result
// in a line of scratch that stays in the cache; a line is used again as soon as its accumulator has
// been added to another. The last addition writes `out`, when the block of every term has been
// read: so `out` may be one of the terms.
void fold_blocks(float* out, std::span<const float* const> terms, std::span<const FoldStep> order,
                 int64_t n) {
  constexpr int64_t kBlock = 1024;

  // Lines are given out once, for all blocks: line[t] is where accumulator t is, -1 while it is
  // still the term itself.
  std::vector<int> line(terms.size(), -1), free;
  int lines = 0;
  for (size_t s = 0; s + 1 < order.size(); ++s) {
    if (line[order[s].left] < 0) {
      if (free.empty()) free.push_back(lines++);
      line[order[s].left] = free.back();
      free.pop_back();
    }
    if (line[order[s].right] >= 0) free.push_back(line[order[s].right]);
  }

  // at[t] is where accumulator t of this block is at the moment.
  std::vector<float> scratch(lines * kBlock);
  std::vector<const float*> at(terms.size());
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    for (size_t t = 0; t < terms.size(); ++t) at[t] = terms[t] + begin;
    for (size_t s = 0; s < order.size(); ++s) {
      const auto [left, right] = order[s];
      float* to = s + 1 == order.size() ? out + begin : scratch.data() + line[left] * kBlock;
      add(to, at[left], at[right], size);
      at[left] = to;
    }
  }
}

}  // namespace

void add_into(float* a, const float* b, int64_t n) { add(a, a, b, n); }

void fold(float* out, std::span<const float* const> terms, std::span<const FoldStep> order,
          int64_t n) {
  TUTTI_CHECK(!terms.empty() && order.size() + 1 == terms.size(),
              "a fold of {} terms by {} additions", terms.size(), order.size());

  // A single term is copied, unless it is in place already.
  if (terms.size() == 1) {
    if (out != terms[0]) std::memcpy(out, terms[0], n * sizeof(float));
    return;
  }

  if (const auto shape = shape_of(order)) {
    static constexpr decltype(&isa_portable::fold_shape) kFoldShape[] = TUTTI_TABLE_OF(fold_shape);
    return on_path(kFoldShape)(*shape, out, terms.data(), n);
  }

  fold_blocks(out, terms, order, n);
}

double sum_squares(const float* x, int64_t n) {
  static constexpr decltype(&isa_portable::sum_squares) kSumSquares[] = TUTTI_TABLE_OF(sum_squares);
  return on_path(kSumSquares)(x, n);
}

}  // namespace tutti
