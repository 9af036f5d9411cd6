#include "grid/mesh.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace tutti {

namespace {

/// What an owner makes of a round's contributions, spelled out.
std::string sum_of(const Round& round, std::vector<std::string> terms) {
  for (const auto& [into, from] : round.sums.at(0).order)
    terms[into] = fmt::format("({}+{})", terms[into], terms[from]);
  return terms[0];
}

std::string tree(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  const int middle = begin + static_cast<int>(tree_left(end - begin));
  return fmt::format("({}+{})", tree(begin, middle), tree(middle, end));
}

}  // namespace

TEST(MeshGrid, EveryMicroBatchIsInOneRankAndRound) {
  for (bool owner : {false, true}) {
    for (bool micro : {false, true}) {
      const SumOptions options{{5, owner && !micro ? 1 : 2, 1}, 3, owner, micro};
      std::vector<int> seen(10, 0);
      for (int d = 0; d < options.ranks; ++d) {
        const auto rounds = rounds_of(options, d);
        EXPECT_EQ(rounds.size(), sum_rounds(options).size());
        for (const MicroBatch& m : sequence_of(options, d))
          if (!m.idle()) ++seen[m.lane * 2 + m.micro];
      }
      for (int lane = 0; lane < 5; ++lane)
        for (int m = 0; m < options.batch.micro_batches; ++m)
          EXPECT_EQ(seen[lane * 2 + m], 1) << lane << "." << m;
    }
  }
}

TEST(MeshGrid, RanksWithLessThanOthersInARoundBeginItByIdling) {
  const MicroBatch none{-1, -1};
  const SumOptions local{{4, 2, 1}, 3};  // lanes 0 and 1, 2, 3
  EXPECT_EQ(rounds_in_step(local, 0), rounds_of(local, 0));
  EXPECT_EQ(rounds_in_step(local, 2),
            (std::vector<std::vector<MicroBatch>>{{none, none, {3, 0}, {3, 1}}}));
  const SumOptions owner{{4, 1, 1}, 3, true};  // lane 3 is a round of rank 0 alone
  EXPECT_EQ(rounds_in_step(owner, 1), (std::vector<std::vector<MicroBatch>>{{{1, 0}}, {none}}));
  EXPECT_TRUE(none.idle());
}

TEST(MeshGrid, SumsOfGroupsAndThenOfTheirSumsAreTheTree) {
  for (const auto& [lanes, ranks, together] :
       {std::tuple{8, 4, 2}, {16, 8, 4}, {12, 6, 2}, {24, 12, 4}, {8, 8, 2}, {32, 8, 4}}) {
    const SumOptions options{{lanes, 1, 1}, ranks};
    for (int position = 0; position < together; ++position) {
      std::vector<std::string> groups;
      for (int group = 0; group < ranks / together; ++group) {
        const Round inside = round_inside(options, together, group);
        std::vector<std::string> parts;
        for (const Contribution& c : inside.contributions) {
          EXPECT_EQ(c.data_rank / together, group);
          parts.push_back(tree(static_cast<int>(c.lanes.begin), static_cast<int>(c.lanes.end)));
        }
        groups.push_back(sum_of(inside, parts));
      }
      const Round between = round_between(options, together, position);
      for (const Contribution& c : between.contributions)
        EXPECT_EQ(c.data_rank % together, position);
      EXPECT_EQ(sum_of(between, groups), tree(0, lanes))
          << lanes << " lanes, " << ranks << " ranks by " << together;
    }
  }
}

}  // namespace tutti
