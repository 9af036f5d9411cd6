// Every case up to 17 lanes: what holds for all of these holds for the shapes that matter (a power
// of two, one more, one less).
#include "grid/grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/philox.h"

namespace tutti {

namespace {

constexpr int kMaxLanes = 17;

std::string text(Range r) { return fmt::format("[{},{})", r.begin, r.end); }

/// The job's expression over lanes [begin, end), written out from the definition.
std::string expression(int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  if (n == 1) return std::to_string(begin);
  int64_t left = 1;
  while (2 * left < n) left *= 2;
  return "(" + expression(begin, begin + left) + "+" + expression(begin + left, end) + ")";
}

/// What is summed so far, by range.
using Terms = std::map<std::pair<int64_t, int64_t>, std::string>;

/// Adds the right term into the left; false if one is not there.
bool apply(const TreeSum& sum, Terms& terms) {
  const auto left = terms.find({sum.left.begin, sum.left.end}),
             right = terms.find({sum.right.begin, sum.right.end});
  if (left == terms.end() || right == terms.end() || sum.left.end != sum.right.begin) return false;
  const std::string both = "(" + left->second + "+" + right->second + ")";
  terms.erase(left);
  terms.erase(right);
  terms[{sum.left.begin, sum.right.end}] = both;
  return true;
}

/// Goes through the owned lanes in order, folding after each; returns the most terms held at once.
int fold_lanes(Range owned, int64_t lanes, Terms& terms) {
  int most = 0;
  for (int64_t lane = owned.begin; lane < owned.end; ++lane) {
    terms[{lane, lane + 1}] = std::to_string(lane);
    most = std::max(most, static_cast<int>(terms.size()));
    for (const TreeSum& sum : sums_after_lane(lane, owned, lanes)) {
      EXPECT_TRUE(apply(sum, terms))
          << text(sum.left) << " + " << text(sum.right) << " after lane " << lane;
      EXPECT_EQ(sum.right.end, lane + 1);
    }
  }
  return most;
}

bool is_node(Range wanted, Range node) {
  if (wanted == node) return true;
  if (node.size() == 1) return false;
  const int64_t middle = node.begin + tree_left(node.size());
  return wanted.end <= middle ? is_node(wanted, {node.begin, middle})
                              : wanted.begin >= middle && is_node(wanted, {middle, node.end});
}

template <typename F>
void for_all_owned(F body) {
  for (int lanes = 1; lanes <= kMaxLanes; ++lanes) {
    for (int begin = 0; begin < lanes; ++begin) {
      for (int end = begin + 1; end <= lanes; ++end) {
        SCOPED_TRACE(testing::Message() << "lanes " << lanes << " owned " << begin << ".." << end);
        body(Range{begin, end}, lanes);
      }
    }
  }
}

}  // namespace

TEST(Grid, LanesOfCoverAllLanesInRankOrderWithSizesThatDifferByAtMostOne) {
  for (int lanes = 1; lanes <= kMaxLanes; ++lanes) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      int64_t next = 0, last_size = lanes;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range owned = lanes_of(rank, ranks, lanes);
        EXPECT_EQ(owned.begin, next);
        EXPECT_LE(owned.size(), last_size);  // the first ranks have more
        EXPECT_TRUE(owned.size() == lanes / ranks || owned.size() == (lanes + ranks - 1) / ranks);
        next = owned.end;
        last_size = owned.size();
      }
      EXPECT_EQ(next, lanes) << lanes << " lanes on " << ranks << " ranks";
    }
  }
}

TEST(Grid, SamplesOfAStepAreConsecutiveLaneMajor) {
  const Batch batch{3, 2, 4};
  int64_t next = 0;
  for (int64_t step = 0; step < 3; ++step) {
    for (int lane = 0; lane < 3; ++lane) {
      for (int micro = 0; micro < 2; ++micro, next += 4)
        EXPECT_EQ(first_sample(batch, step, lane, micro), next);
    }
    EXPECT_EQ(next, (step + 1) * batch.samples());
  }
}

TEST(Grid, SampleNumbersDoNotOverflowInLongRuns) {
  EXPECT_EQ(first_sample({1 << 14, 1 << 10, 1 << 10}, int64_t{1} << 25, 0, 0), int64_t{1} << 59);
}

TEST(Grid, BatchOfReadsTheJob) {
  TrainConfig train{};
  train.lanes = 8, train.micro_batches = 3, train.micro_batch_size = 5;
  const Batch batch = batch_of(train);
  EXPECT_EQ(batch.lanes, 8);
  EXPECT_EQ(batch.micro_batches, 3);
  EXPECT_EQ(batch.micro_batch_size, 5);
}

TEST(Grid, TheLeftPartIsTheLargestPowerOfTwoBelowN) {
  const std::map<int64_t, int64_t> known{{2, 1}, {3, 2}, {4, 2},  {5, 4},
                                         {8, 4}, {9, 8}, {16, 8}, {17, 16}};
  for (auto [n, left] : known) EXPECT_EQ(tree_left(n), left) << n;
  for (int64_t n = 2; n < 2000; ++n) {
    const int64_t left = tree_left(n);
    EXPECT_EQ(left & (left - 1), 0);
    EXPECT_TRUE(left < n && 2 * left >= n) << n;
  }
}

TEST(Grid, SubtreesAreNodesThatCoverTheOwnedLanesAndCannotBeWidened) {
  for_all_owned([](Range owned, int64_t lanes) {
    const auto parts = subtrees(owned, lanes);
    int64_t next = owned.begin;
    for (Range part : parts) {
      EXPECT_EQ(part.begin, next);
      EXPECT_TRUE(is_node(part, {0, lanes})) << text(part);
      next = part.end;
    }
    EXPECT_EQ(next, owned.end);
    // Maximal: no node of the tree inside the owned lanes holds a part and more.
    for (int64_t begin = owned.begin; begin < owned.end; ++begin) {
      for (int64_t end = begin + 1; end <= owned.end; ++end) {
        if (!is_node({begin, end}, {0, lanes})) continue;
        const bool inside_one = std::any_of(parts.begin(), parts.end(), [&](Range part) {
          return part.begin <= begin && end <= part.end;
        });
        EXPECT_TRUE(inside_one) << text({begin, end});
      }
    }
  });
}

TEST(Grid, AnEmptyShareHasNoSubtrees) { EXPECT_TRUE(subtrees({3, 3}, 8).empty()); }

TEST(Grid, SumsAfterEachLaneLeaveExactlyTheMaximalSubtrees) {
  for_all_owned([](Range owned, int64_t lanes) {
    Terms terms;
    fold_lanes(owned, lanes, terms);
    Terms expected;
    for (Range part : subtrees(owned, lanes))
      expected[{part.begin, part.end}] = expression(part.begin, part.end);
    EXPECT_EQ(terms, expected);
  });
}

TEST(Grid, FoldBuffersIsTheMostTermsHeldAtOnce) {
  for_all_owned([](Range owned, int64_t lanes) {
    Terms terms;
    EXPECT_EQ(fold_buffers(owned, lanes), fold_lanes(owned, lanes, terms));
  });
}

TEST(Grid, FoldBuffersOfOneRankIsLogarithmic) {
  for (int log = 0; log <= 10; ++log) EXPECT_EQ(fold_buffers({0, 1 << log}, 1 << log), log + 1);
}

/// Folds as ranks of these borders would, then finishes the tree.
std::string sum_over(const std::vector<int64_t>& borders, int64_t lanes) {
  Terms terms;
  std::vector<Range> parts;
  for (size_t r = 0; r + 1 < borders.size(); ++r) {
    Terms own;
    const Range owned{borders[r], borders[r + 1]};
    fold_lanes(owned, lanes, own);
    terms.merge(own);
    for (Range part : subtrees(owned, lanes)) parts.push_back(part);
  }
  for (const TreeSum& sum : tree_sums(parts, lanes)) EXPECT_TRUE(apply(sum, terms));
  EXPECT_EQ(terms.size(), 1u);
  return terms.begin()->second;
}

TEST(Grid, TheSumIsOneExpressionForEveryNumberOfRanks) {
  for (int lanes = 1; lanes <= kMaxLanes; ++lanes) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      std::vector<int64_t> borders{0};
      for (int rank = 0; rank < ranks; ++rank) borders.push_back(lanes_of(rank, ranks, lanes).end);
      EXPECT_EQ(sum_over(borders, lanes), expression(0, lanes))
          << lanes << " lanes on " << ranks << " ranks";
    }
  }
}

TEST(Grid, TheSumIsOneExpressionForEveryContiguousOwnership) {
  for (int lanes = 1; lanes <= 10; ++lanes) {
    for (unsigned cuts = 0; cuts < 1u << (lanes - 1); ++cuts) {  // bit i: a rank ends after lane i
      std::vector<int64_t> borders{0};
      for (int lane = 0; lane + 1 < lanes; ++lane) {
        if (cuts >> lane & 1) borders.push_back(lane + 1);
      }
      borders.push_back(lanes);
      ASSERT_EQ(sum_over(borders, lanes), expression(0, lanes))
          << lanes << " lanes cut by " << cuts;
    }
  }
}

TEST(Grid, ChunksRestartAtEveryParameterAndLeaveOutPadding) {
  const std::vector<Range> parameters{
      {0, kChunk + 5}, {kChunk + 16, 2 * kChunk + 16}, {3 * kChunk, 3 * kChunk + 1}};
  const std::vector<Range> expected{{0, kChunk},
                                    {kChunk, kChunk + 5},
                                    {kChunk + 16, 2 * kChunk + 16},
                                    {3 * kChunk, 3 * kChunk + 1}};
  EXPECT_EQ(chunks_of(parameters), expected);
}

TEST(Grid, SlicesCoverTheUnitOnChunkStartsAndAreAsEvenAsTheseAllow) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const PhiloxKey key{seed, Purpose::kTest, 0, 0};
    std::vector<Range> parameters;
    int64_t size = 0;
    for (uint64_t i = 0; i < 1 + seed % 7; ++i) {
      const int64_t n = 1 + static_cast<int64_t>(philox_below(key, i, 5 * kChunk));
      parameters.push_back({size, size + n});
      size = align_up(size + n, kAlign);
    }
    const auto chunks = chunks_of(parameters);
    for (int parts = 1; parts <= 9; ++parts) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " parts " << parts);
      const auto slices = slices_of(parameters, size, parts);
      ASSERT_EQ(slices.size(), static_cast<size_t>(parts));
      int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        EXPECT_EQ(slices[part].begin, next);
        EXPECT_LE(slices[part].begin, slices[part].end);
        next = slices[part].end;
        const bool on_chunk =
            std::any_of(chunks.begin(), chunks.end(), [&](Range c) { return c.begin == next; });
        EXPECT_TRUE(on_chunk || next == size) << next;
        // A border is within half the widest gap (a chunk and padding) of the even cut.
        EXPECT_LE(std::abs(next - size * (part + 1) / parts), (kChunk + kAlign) / 2 + 1);
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(Grid, MorePartsThanChunksLeaveSomeSlicesEmpty) {
  const auto slices = slices_of({{0, 10}}, 16, 3);
  EXPECT_EQ(slices.size(), 3u);
  EXPECT_EQ(std::count_if(slices.begin(), slices.end(), [](Range s) { return s.empty(); }), 2);
  EXPECT_EQ(slices_of({}, 0, 2), (std::vector<Range>{{0, 0}, {0, 0}}));
}

TEST(Grid, HostsHoldConsecutiveRanksAndEveryRankIsOnItsHost) {
  for (int ranks = 1; ranks <= 12; ++ranks) {
    for (int hosts = 1; hosts <= ranks; ++hosts) {
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(ranks_of_host(host_of(rank, ranks, hosts), ranks, hosts).contains(rank));
      }
      EXPECT_EQ(ranks_of_host(0, ranks, hosts).begin, 0);
      EXPECT_EQ(ranks_of_host(hosts - 1, ranks, hosts).end, ranks);
    }
  }
}

}  // namespace tutti
