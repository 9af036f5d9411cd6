#include "plan/ir/program.h"

#include <gtest/gtest.h>

#include "plan/make/ddp.h"
#include "unit/plan/sample_models.h"

namespace tutti {

using test::sample_model;

namespace {

Plan sample_plan() {
  DdpOptions options;
  options.ranks = 2, options.lanes = 5, options.micro_batches = 2;
  return plan_ddp(sample_model(3, true), options);
}

}  // namespace

TEST(Program, PlanHashIsAFunctionOfThePlan) { EXPECT_EQ(plan_hash(sample_plan()), plan_hash(sample_plan())); }

TEST(Program, PlanHashSeesEveryField) {
  const uint64_t original = plan_hash(sample_plan());
  std::vector<std::function<void(Plan&)>> changes = {
      [](Plan& p) { ++p.lanes; },
      [](Plan& p) { ++p.ranks; },
      [](Plan& p) { p.buckets[0].units.pop_back(); },
      [](Plan& p) { ++p.buckets[0].unit_offset[0]; },
      [](Plan& p) { ++p.buckets[0].partial_size; },
      [](Plan& p) { p.programs.pop_back(); },
      [](Plan& p) { ++p.programs[1].rank; },
      [](Plan& p) { ++p.programs[1].lanes.end; },
      [](Plan& p) { ++p.programs[1].events; },
      [](Plan& p) { p.programs[1].queues[1].name = "d"; },
      [](Plan& p) { p.programs[1].buffers[3].name += "x"; },
      [](Plan& p) { p.programs[1].buffers[3].kind = BufferKind::kMessage; },
      [](Plan& p) { ++p.programs[1].buffers[3].bytes; },
      [](Plan& p) { ++p.programs[1].buffers[3].unit; },
      [](Plan& p) { ++p.programs[1].buffers[3].partial; },
      [](Plan& p) { ++p.programs[1].buffers[3].level; },
  };
  const std::vector<std::function<void(Instruction&)>> instruction_changes = {
      [](Instruction& i) { i.op = Op::kNorm; },
      [](Instruction& i) { ++i.id; },
      [](Instruction& i) { ++i.block; },
      [](Instruction& i) { ++i.segment; },
      [](Instruction& i) { ++i.lane; },
      [](Instruction& i) { ++i.micro; },
      [](Instruction& i) { ++i.bucket; },
      [](Instruction& i) { i.waits.push_back(0); },
      [](Instruction& i) { ++i.signal; },
      [](Instruction& i) { i.reads.push_back(0); },
      [](Instruction& i) { i.writes.push_back(0); },
      [](Instruction& i) { i.holds.push_back(0); },
      [](Instruction& i) {
        i.adds.push_back({0, 0});
      },
  };
  for (const auto& change : instruction_changes) {
    changes.push_back([change](Plan& p) { change(p.programs[1].queues[0].instructions[7]); });
  }
  for (size_t k = 0; k < changes.size(); ++k) {
    Plan plan = sample_plan();
    changes[k](plan);
    EXPECT_NE(plan_hash(plan), original) << "change " << k;
  }
}

TEST(Program, InstructionsReadAsTheyAreSpoken) {
  Instruction i;
  i.op = Op::kForward, i.block = 3, i.segment = 1, i.lane = 2, i.micro = 0;
  EXPECT_EQ(to_string(i), "Forward block 3.1 lane 2 micro 0");
  Instruction u;
  u.op = Op::kUpdate, u.block = 3, u.bucket = 1;
  EXPECT_EQ(to_string(u), "Update unit 3 bucket 1");
}

TEST(Program, TheDumpNamesBuffersAndEvents) {
  const std::string text = to_string(sample_plan().programs[0]);
  for (const char* line : {"rank 0 lanes [0, 3)", "queue compute", "queue data", "partial 0 of 2 += scratch",
                           "Reduce bucket 0  after e", "Vote  -> e"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(Shape, ParameterCountLeavesOutPaddingAndSharedGradients) {
  EXPECT_EQ(sample_model(3, true).parameter_count(), 20 + 27 + 34);
}

}  // namespace tutti
