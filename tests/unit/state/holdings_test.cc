// Whatever two layouts hold, moves() takes every element from one that has it to each that wants
// it, and what is moved is what one rank with everything would have.
#include "state/holdings.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "model/make_model.h"
#include "plan/make/plan_mesh.h"
#include "state/collect.h"
#include "support/tiny_gpt.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const ModelShape& small_gpt() {
  static const ModelShape shape = describe(make_model(tied_gpt(2)));
  return shape;
}

struct Layout {
  int data, tensor, pipeline, zero, shards = 0;
};
void PrintTo(const Layout& l, std::ostream* out) {
  *out << l.data << "x" << l.tensor << "x" << l.pipeline << " zero " << l.zero << "/" << l.shards;
}
constexpr Layout kLayouts[] = {{1, 1, 1, 0},    {2, 1, 1, 0}, {2, 1, 1, 1},
                               {4, 1, 1, 2, 2}, {3, 1, 1, 3}, {1, 2, 1, 0},
                               {1, 1, 2, 0},    {2, 2, 1, 3}, {2, 1, 2, 1}};

Holdings held_in(const ModelShape& shape, const std::vector<EntryPlace>& entries,
                 const Layout& layout) {
  MeshOptions options;
  options.mesh = {layout.data, layout.tensor, layout.pipeline,
                  layout.zero == 0     ? 1
                  : layout.shards == 0 ? layout.data
                                       : layout.shards};
  options.zero = layout.zero;
  options.batch = {4, 1, 2};
  return holdings_of(entries, plan_mesh(shape, options));
}

/// What an element of an entry is worth in these tests.
float worth(size_t entry, int64_t element) {
  return static_cast<float>(entry) + static_cast<float>(element % 1000) / 1024.0f;
}

struct Pieces {
  Pieces(const std::vector<Holding>& holdings, bool filled) {
    for (const Holding& held : holdings) {
      auto& values =
          storage.emplace_back(std::make_unique<std::vector<float>>(held.range.size(), -1.0f));
      for (int64_t i = 0; filled && i < held.range.size(); ++i)
        (*values)[i] = worth(held.entry, held.range.begin + i);
      pieces.push_back({held.entry, held.range, *values});
    }
  }
  std::vector<std::unique_ptr<std::vector<float>>> storage;
  std::vector<StatePiece> pieces;
};

class MovesTest : public testing::TestWithParam<std::tuple<Layout, Layout>> {};

TEST_P(MovesTest, BringEveryElementOnceToEachWhoWantsItAndLetStayWhatIsThere) {
  const ModelShape& shape = small_gpt();
  const std::vector<EntryPlace> entries = entry_places(shape, {"m", "v"});
  const auto& [before, after] = GetParam();
  const Holdings from = held_in(shape, entries, before), to = held_in(shape, entries, after);
  // by rank, entry and element: how often
  std::vector<std::vector<std::vector<int>>> taken(to.size());
  for (auto& entry : taken)
    for (const EntryPlace& place : entries) entry.emplace_back(place.shape.size(), 0);
  const auto holds = [](const std::vector<Holding>& list, size_t entry, Range range) {
    return std::any_of(list.begin(), list.end(), [&](const Holding& held) {
      return held.entry == entry && held.range.begin <= range.begin && range.end <= held.range.end;
    });
  };
  for (const Move& move : moves(from, to)) {
    EXPECT_TRUE(holds(from[move.from], move.entry, move.range))
        << "rank " << move.from << " does not have it";
    if (static_cast<size_t>(move.to) < from.size() && move.from != move.to) {
      EXPECT_FALSE(holds(from[move.to], move.entry, move.range)) << "rank " << move.to << " had it";
    }
    for (int64_t i = move.range.begin; i < move.range.end; ++i) ++taken[move.to][move.entry][i];
  }
  auto wanted = taken;
  for (size_t r = 0; r < to.size(); ++r) {
    for (auto& entry : wanted[r]) std::fill(entry.begin(), entry.end(), 0);
    for (const Holding& held : to[r])
      std::fill(wanted[r][held.entry].begin() + held.range.begin,
                wanted[r][held.entry].begin() + held.range.end, 1);
    EXPECT_EQ(taken[r], wanted[r]) << "rank " << r;
  }
}

TEST_P(MovesTest, CarryValuesBetweenRanksThatMessageEachOther) {
  const ModelShape& shape = small_gpt();
  const std::vector<EntryPlace> entries = entry_places(shape, {"m"});
  const auto& [before, after] = GetParam();
  Holdings from = held_in(shape, entries, before), to = held_in(shape, entries, after);
  const size_t ranks = std::max(from.size(), to.size());
  from.resize(ranks);  // some join, or leave
  to.resize(ranks);
  const std::vector<Move> plan = moves(from, to);
  over({"inproc", "inproc", true, false}, static_cast<int>(ranks), [&](TestRank& me) {
    Channel channel(me.transport, me.clock, {64, 79}, std::chrono::seconds(20));
    const Pieces mine(from[me.rank], true), wanted(to[me.rank], false);
    move_values(plan, mine.pieces, wanted.pieces, channel);
    for (const StatePiece& piece : wanted.pieces)
      for (int64_t i = 0; i < piece.range.size(); ++i)
        if (piece.values[i] != worth(piece.entry, piece.range.begin + i)) {
          ADD_FAILURE() << "rank " << me.rank << " entry " << piece.entry << " element "
                        << piece.range.begin + i;
          return;
        }
  });
}

INSTANTIATE_TEST_SUITE_P(Between, MovesTest,
                         testing::Combine(testing::ValuesIn(kLayouts),
                                          testing::ValuesIn(kLayouts)));

TEST(Entries, SayHowTheyCommit) {
  ModelShape shape;
  BlockShape block;
  for (Role role : {Role::kTrained, Role::kMeanBuffer, Role::kSumBuffer}) {
    ParameterShape p;
    p.name = std::to_string(static_cast<int>(role));
    p.dims = {4}, p.size = 4, p.role = role;
    block.parameters.push_back(p);
  }
  shape.blocks = {block};
  const std::vector<EntryPlace> entries = entry_places(shape, {"m"});
  ASSERT_EQ(entries.size(), 4u) << "buffers have no slots";
  const Commit expected[] = {Commit::kInPlace, Commit::kInPlace, Commit::kSwapped,
                             Commit::kInPlace};
  for (size_t e = 0; e < entries.size(); ++e)
    EXPECT_EQ(entries[e].commit, expected[e]) << entries[e].shape.name;
}

TEST(Moves, RefuseWhatNobodyHolds) {
  EXPECT_THROW(moves({{{0, {0, 5}}}}, {{{0, {0, 6}}}}), Error);
  EXPECT_THROW(moves({{}}, {{{3, {0, 1}}}}), Error);
  EXPECT_EQ(moves({{{0, {0, 5}}}}, {{}}), std::vector<Move>{});
}

TEST(Moves, LetThoseWhoHoldTheSameTakeTurns) {
  const Holdings from{{{0, {0, 8}}}, {{0, {0, 8}}}, {}, {}, {}, {}};
  const Holdings to{{}, {}, {{0, {0, 8}}}, {{0, {0, 8}}}, {{0, {0, 8}}}, {{0, {0, 8}}}};
  std::map<int, int> given;
  for (const Move& move : moves(from, to)) ++given[move.from];
  EXPECT_EQ(given, (std::map<int, int>{{0, 2}, {1, 2}}));
}

}  // namespace
}  // namespace tutti
