// The fold kernels against the tree written out, for every length around the vector sizes and both
// instruction sets.
#include "comm/fold.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/processor.h"
#include "comm/fold_kernels.h"
#include "comm/tree.h"
#include "grid/grid.h"

namespace tutti {
namespace {

std::vector<float> random_floats(std::mt19937_64& random, int64_t n) {
  std::vector<float> x(n);
  std::normal_distribution<float> normal;
  for (float& v : x) v = std::ldexp(normal(random), static_cast<int>(random() % 30) - 15);
  return x;
}

float tree(const std::vector<std::vector<float>>& terms, int64_t first, int64_t n, int64_t i) {
  if (n == 1) return terms[first][i];
  const int64_t left = tree_left(n);
  return tree(terms, first, left, i) + tree(terms, first + left, n - left, i);
}

std::vector<FoldStep> order_of(int lanes) {
  std::vector<Range> leaves;
  for (int l = 0; l < lanes; ++l) leaves.push_back({l, l + 1});
  return fold_order(leaves, {0, lanes});
}

TEST(Fold, IsTheTreeForAnyNumberOfTermsAndAnyLength) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int lanes = 1; lanes <= 17; ++lanes) {
    for (int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 1023, 1025, 3000}) {
      std::vector<std::vector<float>> terms;
      std::vector<const float*> pointers;
      for (int l = 0; l < lanes; ++l) terms.push_back(random_floats(random, n + 1));
      for (auto& t : terms) pointers.push_back(t.data());
      std::vector<float> expected(n + 1, 42.0F), out = expected;
      for (int64_t i = 0; i < n; ++i) expected[i] = tree(terms, 0, lanes, i);
      fold(out.data(), pointers, order_of(lanes), n);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), 4 * (n + 1)), 0)
          << lanes << " terms of " << n;
      const int in_place = static_cast<int>(random() % lanes);  // over one of the terms
      const float behind = terms[in_place][n];
      fold(terms[in_place].data(), pointers, order_of(lanes), n);
      expected[n] = behind;
      ASSERT_EQ(std::memcmp(terms[in_place].data(), expected.data(), 4 * (n + 1)), 0)
          << lanes << " over " << in_place;
    }
  }
}

TEST(Fold, OrdersOfPartialSubtreesAreSubsequencesOfTheTree) {
  // 3 ranks on 8 lanes own [0,3) [3,6) [6,8): subtrees [0,2) [2,3) | [3,4) [4,6) | [6,8).
  const std::vector<FoldStep> order = fold_order({{0, 2}, {2, 3}, {3, 4}, {4, 6}, {6, 8}}, {0, 8});
  std::vector<std::pair<int, int>> pairs;
  for (const FoldStep& s : order) pairs.emplace_back(s.left, s.right);
  EXPECT_EQ(pairs, (std::vector<std::pair<int, int>>{{1, 2}, {0, 1}, {3, 4}, {0, 3}}));
}

TEST(Fold, GroupsAreAddedFromLeftToRight) {
  const std::vector<FoldStep> order = fold_order_of_groups(order_of(2), 2, 3);
  std::vector<std::pair<int, int>> pairs;
  for (const FoldStep& s : order) pairs.emplace_back(s.left, s.right);
  EXPECT_EQ(pairs, (std::vector<std::pair<int, int>>{{0, 1}, {2, 3}, {4, 5}, {0, 2}, {0, 4}}));
}

TEST(Fold, AddIntoAddsEveryElementAndNoOther) {
  std::mt19937_64 random(3);
  for (int64_t n = 0; n < 70; ++n) {
    std::vector<float> a = random_floats(random, n + 1), b = random_floats(random, n + 1),
                       expected = a;
    for (int64_t i = 0; i < n; ++i) expected[i] += b[i];
    add_into(a.data(), b.data(), n);
    ASSERT_EQ(a, expected) << n;
  }
}

TEST(Fold, EveryCodePathGivesTheSameBits) {
  static constexpr decltype(&isa_portable::sum_squares) kSquares[] = TUTTI_TABLE_OF(sum_squares);
  static constexpr decltype(&isa_portable::fold_shape) kFold[] = TUTTI_TABLE_OF(fold_shape);
  std::mt19937_64 random(4);
  for (int64_t n = 1; n <= 4096; n += n < 80 ? 1 : 401) {
    const std::vector<float> x = random_floats(random, n), y = random_floats(random, n),
                             z = random_floats(random, n), w = random_floats(random, n);
    const float* terms[] = {x.data(), y.data(), z.data(), w.data()};
    for (const CodePath path : runnable_paths()) {
      const double squares = on_path(kSquares, path)(x.data(), n),
                   expected = isa_portable::sum_squares(x.data(), n);
      ASSERT_EQ(std::memcmp(&squares, &expected, 8), 0) << n << " " << name_of(path);
      for (TreeShape shape :
           {TreeShape::kPair, TreeShape::kLeft3, TreeShape::kRight3, TreeShape::kBalanced4}) {
        std::vector<float> a(n), b(n);
        on_path(kFold, path)(shape, a.data(), terms, n);
        isa_portable::fold_shape(shape, b.data(), terms, n);
        ASSERT_EQ(std::memcmp(a.data(), b.data(), 4 * n), 0) << n << " " << name_of(path);
      }
    }
  }
}

TEST(Fold, SumOfSquaresGoesByThirtyTwoAccumulators) {
  std::mt19937_64 random(5);
  for (int64_t n : {0, 1, 31, 32, 33, 1000, 4096}) {
    const std::vector<float> x = random_floats(random, n);
    double sums[32] = {};
    for (int64_t i = 0; i < n; ++i) sums[i % 32] += double{x[i]} * double{x[i]};
    for (int half = 16; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    EXPECT_EQ(sum_squares(x.data(), n), sums[0]) << n;
  }
}

}  // namespace
}  // namespace tutti
