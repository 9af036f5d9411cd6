#include "plan/transfers.h"

#include <gtest/gtest.h>

#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

struct Planned : test::PlannedMesh {
  Planned(const MeshModel& m, const Mesh& mesh, int zero, Batch batch, bool owner = false)
      : PlannedMesh(mesh_model(m), mesh, zero, batch) {
    options.owner = owner;
    plan = plan_mesh(model, options);
  }
  const Instruction& get(int rank, Op op, int unit, int n = 0) const {
    for (const Queue& queue : plan.programs[rank].queues) {
      for (const Instruction& i : queue.instructions) {
        if (i.op == op && i.block == unit && n-- == 0) return i;
      }
    }
    throw std::out_of_range("no such instruction");
  }
  const Buffer& buffer(int rank, int b) const { return plan.programs[rank].buffers[b]; }
};

constexpr int64_t kFloat = sizeof(float);

}  // namespace

TEST(Transfers, EveryDataRankContributesWholeGradientsAndOwnsItsSlice) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 1, {3, 1, 1});
  const Instruction& reduce = p.get(0, Op::kReduce, 1);
  const SumTransfer sum = sum_transfer(p.plan, p.model, p.options, reduce);
  EXPECT_EQ(sum.ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(sum.slices[0].begin, 0);
  EXPECT_EQ(sum.slices[0].end, sum.slices[1].begin);
  EXPECT_EQ(sum.slices[1].end, p.model.blocks[1].unit_size);
  // Lanes 0 and 1 are one subtree of rank 0, lane 2 is rank 1's.
  ASSERT_EQ(sum.sources.size(), 1u);
  ASSERT_EQ(sum.sources[0].terms.size(), 2u);
  for (int rank : {0, 1}) {
    EXPECT_EQ(sum.sources[0].terms[rank].rank, rank);
    EXPECT_EQ(sum.sources[0].terms[rank].offset, p.buffer(rank, p.get(rank, Op::kReduce, 1).reads[0]).window_offset);
  }
  EXPECT_TRUE(sum.last());
  EXPECT_EQ(level_floats(sum, 0), sum.slices[0].size());
}

TEST(Transfers, AFurtherUserOnTheSameRanksContributesFromBehindTheUnit) {
  const Planned p({4, 1, true}, {2, 1, 1, 2}, 1, {2, 1, 1});
  const SumTransfer sum = sum_transfer(p.plan, p.model, p.options, p.get(0, Op::kReduce, 0));
  ASSERT_EQ(sum.sources.size(), 2u);
  EXPECT_EQ(sum.sources[1].to, (Range{0, 9000}));
  const int64_t extra = p.model.blocks[0].parameters[0].extra_gradients[0];
  EXPECT_EQ(sum.sources[1].terms[1].offset - sum.sources[0].terms[1].offset, extra * kFloat);
}

TEST(Transfers, AFurtherUserOnAnotherStageContributesFromItsOwnBuffer) {
  const Planned p({4, 1, true}, {2, 1, 2, 2}, 1, {2, 1, 1});
  const SumTransfer sum = sum_transfer(p.plan, p.model, p.options, p.get(0, Op::kReduce, 0));
  EXPECT_EQ(sum.ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(sum.slices[2].empty());
  ASSERT_EQ(sum.sources.size(), 2u);
  EXPECT_EQ(sum.sources[1].terms[1].rank, 3);
  EXPECT_EQ(sum.sources[1].terms[1].offset, p.buffer(3, p.get(3, Op::kReduce, 0).reads[0]).window_offset);
}

TEST(Transfers, WhereSumsTakeRoundsALevelHoldsThePartsOfFurtherUsersToo) {
  const Planned p({4, 1, true}, {2, 1, 1, 2}, 2, {4, 1, 1}, true);
  const SumTransfer sum = sum_transfer(p.plan, p.model, p.options, p.get(0, Op::kReduce, 0));
  EXPECT_EQ(sum.rounds, 2);
  EXPECT_FALSE(sum.last());
  EXPECT_EQ(level_floats(sum, 0), 2 * sum.slices[0].size());
}

TEST(Transfers, AGatherAfterUpdateTakesTheOthersSlicesOfMyReplica) {
  const Planned p({4, 1, false}, {4, 1, 1, 2}, 1, {4, 1, 1});
  const CopyTransfer copy = copy_transfer(p.plan, p.model, p.options, p.get(0, Op::kGather, 1));
  EXPECT_TRUE(copy.updated);
  ASSERT_EQ(copy.copies.size(), 4u);  // its own slice lies in the same memory
  for (const auto& c : copy.copies) {
    EXPECT_EQ(c.from / 2, c.to / 2);
    EXPECT_NE(c.from, c.to);
    EXPECT_EQ(c.offset - p.buffer(c.from, p.get(c.from, Op::kGather, 1).reads[0]).window_offset, c.at);
  }
}

TEST(Transfers, AGatherAheadOfForwardFillsASlotFromSlices) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 3, {2, 1, 1});
  const CopyTransfer copy = copy_transfer(p.plan, p.model, p.options, p.get(0, Op::kGather, 1));
  EXPECT_FALSE(copy.updated);
  int64_t bytes = 0;
  for (const auto& c : copy.copies) bytes += c.to == 0 ? c.bytes : 0;
  EXPECT_EQ(bytes, p.model.blocks[1].unit_size * kFloat);
}

TEST(Transfers, CopiesOfSharedParametersGoToOneBufferForEachBlock) {
  const Planned p({4, 4, false}, {1, 2, 1, 1}, 0, {1, 1, 1});
  const int unit = p.model.block_at(1, 0);
  const CopyTransfer copy = copy_transfer(p.plan, p.model, p.options, p.get(0, Op::kGather, unit));
  ASSERT_EQ(copy.copies.size(), 4u);  // norm and bias for columns 2 and 3, on rank 1
  EXPECT_EQ(copy.copies[0].write, 0);
  EXPECT_EQ(copy.copies[3].write, 1);
  EXPECT_EQ(copy.copies[0].bytes, 100 * kFloat);
  EXPECT_EQ(copy.copies[3].bytes, 70 * kFloat);
  EXPECT_EQ(copy.copies[1].at, p.model.blocks[unit].parameters[2].extra_gradients[1] * kFloat -
                                   p.buffer(1, p.get(1, Op::kGather, unit).writes[0]).range.begin * kFloat);
}

TEST(Transfers, TwoRanksOfZeroOneMoveHalfOfEverythingTwice) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 1, {2, 1, 1});
  int64_t floats = 0;
  for (const BlockShape& block : p.model.blocks) floats += block.unit_size;
  // To the other goes its slice of my gradient and my slice of the parameters.
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 0, 1), floats * kFloat);
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 1, 0), floats * kFloat);
}

TEST(Transfers, AStageSendsABorderAndGetsItsGradientBack) {
  const Planned p({4, 1, false}, {1, 1, 2, 1}, 0, {3, 2, 1});
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 0, 1), 6 * 2048);
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 1, 0), 6 * 2048);
}

TEST(Transfers, ColumnsExchangeAllButTheirOwn) {
  const Planned p({3, 2, false}, {1, 2, 1, 1}, 0, {1, 1, 1});
  // Forward and backward: a gather of 1024 bytes, and half of 2048 bytes of partial sums; then what is shared.
  const int64_t shared = (100 + 70) * kFloat;
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 1, 0), 4 * 1024 + shared);
  EXPECT_EQ(link_bytes(p.plan, p.model, p.options, 0, 1), 4 * 1024 + shared);
}

}  // namespace tutti
