// Which ranges of whose windows go where in the sums and copies of a plan, and how many bytes that
// are.
#include "plan/ir/transfers.h"

#include <gtest/gtest.h>

#include "plan/search/link_bytes.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

struct Planned : test::PlannedMesh {
  Planned(const MeshModel& m, const Mesh& mesh, int zero, Batch batch, bool owner = false)
      : PlannedMesh(mesh_model(m), mesh, zero, batch) {
    if (owner) options.fold = FoldKind::kOwner;
    options.bucket_floats = 0;
    plan = plan_mesh(model, options);
  }
  /// The first of its op on a rank that moves the unit.
  const Instruction& get(int rank, Op op, int unit) const {
    for (const Queue& queue : plan.programs[rank].queues)
      for (const Instruction& i : queue.instructions)
        if (i.op == op && plan.parcels[i.parcel].front().unit == unit) return i;
    throw std::out_of_range("no such instruction");
  }
  const SumTransfer& sum(int unit) const { return plan.sums[get(0, Op::kReduce, unit).transfer]; }
  const CopyTransfer& copy(int unit) const {
    return plan.copies[get(0, Op::kGather, unit).transfer];
  }
  /// The first buffer that an instruction has for a role.
  int first(int rank, Op op, int unit, OperandRole role) const {
    return buffer_of(get(rank, op, unit), role);
  }
  const Buffer& buffer(int rank, int b) const { return plan.programs[rank].buffers[b]; }
};

constexpr int64_t kFloat = sizeof(float);

}  // namespace

TEST(Transfers, EveryDataRankContributesWholeGradientsAndOwnsItsSlice) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 1, {3, 1, 1});
  const SumTransfer& sum = p.sum(1);
  EXPECT_EQ(sum.ranks, (std::vector<int>{0, 1}));
  ASSERT_EQ(sum.units.size(), 1u);
  const UnitSum& unit = sum.units[0];
  EXPECT_EQ(unit.unit, 1);
  EXPECT_EQ(unit.slices[0].begin, 0);
  EXPECT_EQ(unit.slices[0].end, unit.slices[1].begin);
  EXPECT_EQ(unit.slices[1].end, p.model.blocks[1].unit_size);
  // Lanes 0 and 1 are one subtree of rank 0, lane 2 is rank 1's.
  ASSERT_EQ(unit.sources.size(), 1u);
  ASSERT_EQ(unit.sources[0].terms.size(), 2u);
  for (int rank : {0, 1}) {
    EXPECT_EQ(unit.sources[0].terms[rank].rank, rank);
    EXPECT_EQ(unit.sources[0].terms[rank].offset,
              p.buffer(rank, p.first(rank, Op::kReduce, 1, OperandRole::kTerm)).window_offset);
  }
  EXPECT_TRUE(sum.last());
  EXPECT_TRUE(sum.ordered);
  EXPECT_EQ(sum.returned, Return::kNone);
  EXPECT_EQ(level_floats(sum, unit, 0), unit.slices[0].size());
}

TEST(Transfers, AFurtherUserOnTheSameRanksContributesFromBehindTheUnit) {
  const Planned p({4, 1, true}, {2, 1, 1, 2}, 1, {2, 1, 1});
  const std::vector<SumSource>& sources = p.sum(0).units[0].sources;
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[1].to, (Range{0, 9000}));
  const int64_t extra = p.model.blocks[0].parameters[0].extra_gradients[0];
  EXPECT_EQ(sources[1].terms[1].offset - sources[0].terms[1].offset, extra * kFloat);
}

TEST(Transfers, AFurtherUserOnAnotherStageContributesFromItsOwnBuffer) {
  const Planned p({4, 1, true}, {2, 1, 2, 2}, 1, {2, 1, 1});
  const SumTransfer& sum = p.sum(0);
  const UnitSum& unit = sum.units[0];
  EXPECT_EQ(sum.ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(unit.slices[2].empty());
  ASSERT_EQ(unit.sources.size(), 2u);
  EXPECT_EQ(unit.sources[1].terms[1].rank, 3);
  EXPECT_EQ(unit.sources[1].terms[1].offset,
            p.buffer(3, p.first(3, Op::kReduce, 0, OperandRole::kTerm)).window_offset);
}

TEST(Transfers, WhereSumsTakeRoundsALevelHoldsThePartsOfFurtherUsersToo) {
  const Planned p({4, 1, true}, {2, 1, 1, 2}, 2, {4, 1, 1}, true);
  const SumTransfer& sum = p.sum(0);
  EXPECT_EQ(sum.rounds, 2);
  EXPECT_FALSE(sum.last());
  EXPECT_EQ(level_floats(sum, sum.units[0], 0), 2 * sum.units[0].slices[0].size());
}

TEST(Transfers, AGatherAfterUpdateTakesTheOthersSlicesOfMyReplica) {
  const Planned p({4, 1, false}, {4, 1, 1, 2}, 1, {4, 1, 1});
  const CopyTransfer& copy = p.copy(1);
  EXPECT_TRUE(copy.updated);
  EXPECT_FALSE(copy.gradients);
  ASSERT_EQ(copy.copies.size(), 4u);  // its own slice is in the same memory
  for (const auto& c : copy.copies) {
    EXPECT_EQ(c.from / 2, c.to / 2);
    EXPECT_NE(c.from, c.to);
    const Buffer& source = p.buffer(c.from, p.first(c.from, Op::kGather, 1, OperandRole::kPart));
    EXPECT_EQ(c.offset - source.window_offset, c.at);
  }
}

TEST(Transfers, AGatherAheadOfForwardFillsASlotFromSlices) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 3, {2, 1, 1});
  const CopyTransfer& copy = p.copy(1);
  EXPECT_FALSE(copy.updated);
  int64_t bytes = 0;
  for (const auto& c : copy.copies) bytes += c.to == 0 ? c.bytes : 0;
  EXPECT_EQ(bytes, p.model.blocks[1].unit_size * kFloat);
}

TEST(Transfers, CopiesOfSharedParametersGoToOneBufferForEachBlock) {
  const Planned p({4, 4, false}, {1, 2, 1, 1}, 0, {1, 1, 1});
  const int unit = p.model.block_at(1, 0);
  const CopyTransfer& copy = p.copy(unit);
  ASSERT_EQ(copy.copies.size(), 4u);  // norm and bias for columns 2 and 3, on rank 1
  const auto wholes = operands_of(p.get(1, Op::kGather, unit), OperandRole::kWhole);
  ASSERT_EQ(wholes.size(), 2u);
  EXPECT_EQ(copy.copies[0].buffer, wholes[0]->buffer);
  EXPECT_EQ(copy.copies[3].buffer, wholes[1]->buffer);
  EXPECT_EQ(copy.copies[0].bytes, 100 * kFloat);
  EXPECT_EQ(copy.copies[3].bytes, 70 * kFloat);
  EXPECT_EQ(copy.copies[1].at, p.model.blocks[unit].parameters[2].extra_gradients[1] * kFloat -
                                   p.buffer(1, wholes[0]->buffer).range.begin * kFloat);
}

TEST(Transfers, TwoRanksOfZeroOneMoveHalfOfEverythingTwice) {
  const Planned p({4, 1, false}, {2, 1, 1, 2}, 1, {2, 1, 1});
  int64_t floats = 0;
  for (const BlockShape& block : p.model.blocks) floats += block.unit_size;
  // To the other goes its slice of my gradient and my slice of the parameters.
  EXPECT_EQ(link_bytes(p.plan, p.model)[0][1], floats * kFloat);
  EXPECT_EQ(link_bytes(p.plan, p.model)[1][0], floats * kFloat);
}

/// What goes between the two halves of the ranks in a step.
int64_t between_hosts(const Planned& p) {
  const int ranks = p.options.mesh.ranks();
  const LinkBytes links = link_bytes(p.plan, p.model);
  int64_t bytes = 0;
  for (int from = 0; from < ranks / 2; ++from)
    for (int to = ranks / 2; to < ranks; ++to) bytes += links[from][to] + links[to][from];
  return bytes;
}

TEST(Transfers, HostsSendEachOtherOneSum) {
  const Mesh inside{8, 1, 1, 4}, over_all{8, 1, 1, 8}, whole{8, 1, 1, 1};
  const Batch batch{8, 2, 1};
  const auto on_hosts = [](Planned p, int hosts) {
    p.options.hosts = hosts;
    p.plan = plan_mesh(p.model, p.options);
    return between_hosts(p);
  };
  const MeshModel model{4, 1, false};
  int64_t bytes = 0;
  for (const BlockShape& block : mesh_model(model).blocks) bytes += block.unit_size * kFloat;
  // Slices inside a host: its sum, once; without levels every rank sends every owner there its
  // part.
  EXPECT_EQ(on_hosts(Planned(model, inside, 1, batch), 2), 2 * bytes);
  EXPECT_EQ(on_hosts(Planned(model, inside, 1, batch), 1), 2 * 4 * bytes);
  EXPECT_EQ(on_hosts(Planned(model, whole, 0, batch), 2), 2 * bytes);
  EXPECT_EQ(on_hosts(Planned(model, whole, 0, batch), 1), (4 + 4) * bytes);
  // Six lanes per host, of twelve: two subtrees leave it.
  const Batch uneven{12, 1, 1};
  EXPECT_EQ(on_hosts(Planned(model, {4, 1, 1, 2}, 1, uneven), 2), 2 * 2 * bytes);
  EXPECT_EQ(on_hosts(Planned(model, {4, 1, 1, 1}, 0, uneven), 2), 2 * 2 * bytes);
  // Slices over all: what the other host owns of the sum; new parameters go to every rank of the
  // other host.
  EXPECT_EQ(on_hosts(Planned(model, over_all, 1, batch), 2), (1 + 4) * bytes);
  EXPECT_EQ(on_hosts(Planned(model, over_all, 1, batch), 1), (4 + 4) * bytes);
}

TEST(Transfers, SumsHaveTwoLevelsOnlyWhereLessTravelsAndHostsHaveTheirSlices) {
  const auto together = [](const Mesh& mesh, int zero, int lanes, int hosts) {
    MeshOptions o;
    o.mesh = mesh, o.zero = zero, o.batch = {lanes, 1, 1}, o.hosts = hosts;
    return host_ranks_of(o);
  };
  EXPECT_EQ(together({4, 1, 1, 2}, 1, 4, 2), 2);
  EXPECT_EQ(together({4, 1, 1, 4}, 3, 8, 2), 2);
  EXPECT_EQ(together({4, 2, 1, 4}, 3, 8, 2), 2);    // two tensor ranks each
  EXPECT_EQ(together({4, 1, 2, 1}, 0, 8, 4), 2);    // two stages on two hosts each
  EXPECT_EQ(together({4, 1, 2, 1}, 0, 8, 2), 0);    // a host has a stage: all its data ranks
  EXPECT_EQ(together({4, 1, 1, 2}, 1, 4, 4), 0);    // one per host
  EXPECT_EQ(together({4, 1, 1, 2}, 1, 12, 2), 2);   // lanes 0 to 5 are two subtrees of 12
  EXPECT_EQ(together({4, 1, 1, 1}, 0, 5, 2), 2);    // ranks have unequal numbers of lanes
  EXPECT_EQ(together({8, 1, 1, 2}, 1, 8, 2), 0);    // two replicas in a host
  EXPECT_EQ(together({16, 1, 1, 1}, 0, 16, 8), 0);  // eight whole sums to a host of two
}

TEST(Transfers, AStageSendsABorderAndGetsItsGradientBack) {
  const Planned p({4, 1, false}, {1, 1, 2, 1}, 0, {3, 2, 1});
  EXPECT_EQ(link_bytes(p.plan, p.model)[0][1], 6 * 2048);
  EXPECT_EQ(link_bytes(p.plan, p.model)[1][0], 6 * 2048);
}

TEST(Transfers, ColumnsExchangeAllButTheirOwn) {
  const Planned p({3, 2, false}, {1, 2, 1, 1}, 0, {1, 1, 1});
  // Forward and backward: a gather of 1024 bytes, and half of 2048 bytes of partial sums; then what
  // is shared.
  const int64_t shared = (100 + 70) * kFloat;
  EXPECT_EQ(link_bytes(p.plan, p.model)[1][0], 4 * 1024 + shared);
  EXPECT_EQ(link_bytes(p.plan, p.model)[0][1], 4 * 1024 + shared);
}

}  // namespace tutti
