// What travels together: small units of a chunk in one parcel, in the order in which backward
// completes them.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/check/prove.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

struct Planned : test::PlannedMesh {
  Planned(const MeshModel& m, const Mesh& mesh, int zero, Batch batch, int64_t merged)
      : PlannedMesh(mesh_model(m), mesh, zero, batch) {
    options.bucket_floats = merged;
    plan = plan_mesh(model, options);
  }
  /// The units of all parcels that are summed, in the parcels' order.
  std::vector<std::vector<int>> summed() const {
    std::set<int> numbers;
    for (const Program& program : plan.programs)
      for (const Queue& queue : program.queues)
        for (const Instruction& i : queue.instructions)
          if (i.op == Op::kReduce) numbers.insert(i.parcel);
    std::vector<std::vector<int>> parcels;
    for (int number : numbers) {
      parcels.emplace_back();
      for (const UnitRange& part : plan.parcels[number]) parcels.back().push_back(part.unit);
    }
    return parcels;
  }
  int count(int rank, Op op) const {
    int found = 0;
    for (const Queue& queue : plan.programs[rank].queues)
      for (const Instruction& i : queue.instructions) found += i.op == op ? 1 : 0;
    return found;
  }
};

using Units = std::vector<std::vector<int>>;
const Mesh kTwo{2, 1, 1, 1};
constexpr int64_t kAll = 1 << 20;

}  // namespace

TEST(Parcels, SmallUnitsAreMergedInTheOrderInWhichBackwardCompletesThem) {
  const Planned p({5, 1, false}, kTwo, 0, {2, 1, 1}, kAll);
  EXPECT_EQ(p.summed(), (Units{{4, 3, 1, 0}}));  // block 2 has no parameters
  EXPECT_EQ(p.count(0, Op::kReduce), 1);
  EXPECT_EQ(p.count(0, Op::kNorm), 1);
  EXPECT_EQ(p.count(0, Op::kUpdate), 4);
  const SumTransfer& sum = p.plan.sums.at(0);
  ASSERT_EQ(sum.units.size(), 4u);
  for (const UnitSum& unit : sum.units)
    EXPECT_EQ(unit.slices.back().end, p.model.blocks[unit.unit].unit_size);
}

TEST(Parcels, AParcelIsClosedOnceItHasSoManyFloats) {
  // Units 4, 3, 1 and 0 have 5056, 5056, 4864 and 9024 floats.
  EXPECT_EQ(Planned({5, 1, false}, kTwo, 0, {2, 1, 1}, 9000).summed(), (Units{{4, 3}, {1, 0}}));
  EXPECT_EQ(Planned({5, 1, false}, kTwo, 0, {2, 1, 1}, 5000).summed(), (Units{{4}, {3}, {1, 0}}));
}

TEST(Parcels, WithoutALimitEveryUnitIsAlone) {
  for (int64_t merged : {0, 1})
    EXPECT_EQ(Planned({5, 1, false}, kTwo, 0, {2, 1, 1}, merged).summed(),
              (Units{{4}, {3}, {1}, {0}}));
}

TEST(Parcels, AUnitWithFurtherUsersIsAlone) {
  EXPECT_EQ(Planned({5, 1, true}, kTwo, 0, {2, 1, 1}, kAll).summed(), (Units{{3, 1}, {0}}));
  // Of a tensor-sliced layer column 0 owns what the others share.
  const Planned sliced({5, 2, false}, kTwo, 0, {2, 1, 1}, kAll);
  for (const std::vector<int>& units : sliced.summed())
    for (int unit : units)
      for (const ParameterShape& p : sliced.model.blocks[unit].parameters)
        if (!p.extra_gradients.empty()) EXPECT_EQ(units.size(), 1u) << "unit " << unit;
}

TEST(Parcels, UnitsOfOtherStagesAndTensorRanksAreNotMerged) {
  for (const Mesh& mesh : {Mesh{2, 1, 2, 1}, Mesh{2, 2, 1, 1}, Mesh{1, 2, 2, 1}}) {
    const Planned p({6, 2, false}, mesh, 0, {2, 1, 1}, kAll);
    bool merged = false;
    for (const Parcel& parcel : p.plan.parcels) {
      merged = merged || parcel.size() > 1;
      for (const UnitRange& part : parcel)
        EXPECT_EQ(p.plan.homes[part.unit], p.plan.homes[parcel.front().unit]);
    }
    EXPECT_EQ(merged, mesh.tensor == 1);  // units of two columns take turns
  }
}

TEST(Parcels, GradientsThatPassThroughAreNotMerged) {
  EXPECT_EQ(Planned({5, 1, false}, {2, 1, 1, 2}, 2, {2, 1, 1}, kAll).summed(),
            (Units{{4}, {3}, {1}, {0}}));
  // kept whole
  EXPECT_EQ(Planned({5, 1, false}, {2, 1, 1, 2}, 2, {2, 2, 1}, kAll).summed(),
            (Units{{4, 3, 1, 0}}));
}

TEST(Parcels, WhatIsGatheredForPassesTravelsUnitByUnit) {
  const Planned p({5, 1, false}, {2, 1, 1, 2}, 3, {2, 2, 1}, kAll);
  EXPECT_EQ(p.summed(), (Units{{4, 3, 1, 0}}));
  int gathers = 0;
  for (const Queue& queue : p.plan.programs[0].queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op != Op::kGather) continue;
      ++gathers;
      EXPECT_EQ(p.plan.parcels[i.parcel].size(), 1u);
    }
  EXPECT_GT(gathers, 4);
}

TEST(Parcels, NewParametersTravelAsTheirSumsDid) {
  const Planned p({5, 1, false}, {2, 1, 1, 2}, 1, {2, 1, 1}, kAll);
  EXPECT_EQ(p.count(0, Op::kGather), 1);
  std::set<int> moved;  // buffers of rank 1
  for (const auto& copy : p.plan.copies.at(0).copies)
    if (copy.to == 1) moved.insert(copy.buffer);
  EXPECT_EQ(moved.size(), 4u);
}

TEST(Parcels, AParcelIsSummedWhenItsLastUnitIsThere) {
  const Planned p({5, 1, false}, kTwo, 0, {2, 1, 1}, kAll);
  ASSERT_TRUE(prove(p.plan, p.model).empty());
  const Program& program = p.plan.programs[0];
  std::map<int, int> signallers;  // by event: the block of the Backward that gives it
  for (const Instruction& i : program.queues[0].instructions)
    if (i.op == Op::kBackward && i.signal >= 0) signallers[i.signal] = i.block;
  for (const Instruction& i : program.queues[1].instructions) {
    if (i.op != Op::kReduce) continue;
    ASSERT_EQ(i.waits.size(), 1u);
    EXPECT_EQ(signallers.at(i.waits[0]), 0);
  }
}

}  // namespace tutti
