#include "plan/ir/program.h"

#include <gtest/gtest.h>

#include "plan/ir/touched.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

TEST(Program, InstructionsReadAsTheyAreSpoken) {
  Instruction i;
  i.op = Op::kForward, i.block = 3, i.segment = 1, i.lane = 2, i.micro = 0;
  EXPECT_EQ(to_string(i), "Forward block 3.1 lane 2 micro 0");
  Instruction u;
  u.op = Op::kUpdate, u.block = 3;
  EXPECT_EQ(to_string(u), "Update unit 3");
  Instruction r;
  r.op = Op::kReduce, r.parcel = 2, r.round = 1;
  EXPECT_EQ(to_string(r), "Reduce parcel 2 round 1");
}

TEST(Program, TheDumpOfAMeshSaysWhatOperandsAreAndWhoseMemoryIsBorrowed) {
  MeshOptions options;
  options.mesh.data = 2;
  options.batch = {2, 1, 1};
  const std::string text =
      to_string(plan_mesh(test::mesh_model({3, 1, false}), options).programs[0]);
  for (const char* part :
       {"Acquire parcel 0  lent partial 0 of 2", "Reduce parcel 0 round 0", "term partial 0 of 1",
        "  gradient buffer ", " of rank 1  verdict verdict  parameter parameter 1",
        "Release parcel 0"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Program, AnInstructionTouchesItsOwnRanksMemoryAlone) {
  Instruction i;
  i.op = Op::kUpdate;
  i.operands = {{OperandRole::kGradient, Access::kRead, 1, 0},
                {OperandRole::kGradient, Access::kRead, 2, 0, {}, 3},
                {OperandRole::kParameter, Access::kUpdate, 4, 0},
                {OperandRole::kMoment, Access::kWrite, 5, 0}};
  const Touched touched = touched_by(i);
  EXPECT_EQ(touched.reads, (std::vector<int>{1, 4}));
  EXPECT_EQ(touched.writes, (std::vector<int>{4, 5}));
}

TEST(Program, ABufferHoldsOfAUnitWhatItReachesAndAnEmptySliceNothing) {
  Buffer whole, slice, nothing;
  whole.bytes = 1024, slice.bytes = 512, slice.range = {64, 128}, nothing.range = {128, 128};
  EXPECT_EQ(placed_in(whole, 200), (std::vector<PlacedRange>{{{0, 200}, 0}}));
  EXPECT_EQ(placed_in(whole, 300), (std::vector<PlacedRange>{{{0, 256}, 0}}));
  EXPECT_EQ(placed_in(slice, 300), (std::vector<PlacedRange>{{{64, 128}, 64}}));
  EXPECT_TRUE(placed_in(nothing, 300).front().range.empty());
}

TEST(Program, TheDumpNamesBuffersAndEvents) {
  MeshOptions options;
  options.mesh.data = 2, options.batch = {5, 2, 1};
  const std::string text =
      to_string(plan_mesh(test::mesh_model({3, 1, true}), options).programs[0]);
  for (const char* line : {"rank 0\n", "queue compute", "queue data", "partial 0 of 1 += scratch",
                           "Reduce parcel 0 round 0  after e", "Vote  "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(Shape, ParameterCountLeavesOutPaddingAndSharedGradients) {
  EXPECT_EQ(test::mesh_model({3, 1, true}).parameter_count(), 9000 + 100 + 4600 + 70);
}

}  // namespace tutti
