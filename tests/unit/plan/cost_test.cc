#include "plan/search/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "base/error.h"
#include "support/gpt_model_shape.h"

namespace tutti {

TEST(Cost, ZeroKeepsWhatThePaperSays) {
  // 7.5 billion parameters on 64 ranks, mixed precision Adam: GB per rank, stages 0 to 3.
  const SlotSizes paper{2, 2, 12};
  const double published[] = {120, 31.4, 16.6, 1.9};
  for (int zero = 0; zero <= 3; ++zero) {
    const double gigabytes = state_bytes(7.5e9, 64, zero, paper) / 1e9;
    EXPECT_EQ(std::round(gigabytes * 10) / 10, published[zero]) << "stage " << zero;
  }
}

TEST(Cost, TheShapeOfSeventyBillionParametersHasThem) {
  for (int columns : {1, 8})
    EXPECT_NEAR(
        static_cast<double>(test::gpt_model_shape(test::gpt_70b(columns)).parameter_count()), 69e9,
        1e9);
}

TEST(Cost, AMessageLiesBetweenTheNearestSamples) {
  const TransportRates rates{{{100, 1}, {200, 3}, {400, 4}}, 0};
  EXPECT_EQ(message_seconds(rates, 1), 1);
  EXPECT_EQ(message_seconds(rates, 150), 2);
  EXPECT_EQ(message_seconds(rates, 200), 3);
  EXPECT_EQ(message_seconds(rates, 800), 8);
}

TEST(Cost, ACalibrationComesBackFromItsFile) {
  Calibration c = default_calibration(DeviceKind::kCpu, 3);
  c.source = "here";
  c.measured = true;
  EXPECT_EQ(parse_calibration(to_json(c), "here"), c);
}

TEST(Cost, ADamagedCalibrationIsRefusedByName) {
  std::string text = to_json(default_calibration(DeviceKind::kCpu, 2));
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"version\": 1", "\"version\": 9"},
                                                        {"\"cores\": 2", "\"cores\": 3"},
                                                        {"\"tcp\"", "\"tpc\""},
                                                        {"{", ""}}) {
    std::string damaged = text;
    damaged.replace(damaged.find(from), from.size(), to);
    try {
      parse_calibration(damaged, "cal.json");
      ADD_FAILURE() << to << " is accepted";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("cal.json: "), 0u) << e.what();
    }
  }
}

TEST(Cost, MoreQueuesThanCoresShareThem) {
  const ModelShape model = test::gpt_model_shape({});
  MeshOptions options;
  CostOptions cost;
  cost.calibration = default_calibration(DeviceKind::kCpu, 2);
  cost.calibration.matmul = {100, 80};
  const CostModel shared = mesh_cost(model, options, cost);
  EXPECT_EQ(shared.pace(Resource::kMatmul, 1), 1);
  EXPECT_EQ(shared.pace(Resource::kMatmul, 2), 0.8);
  EXPECT_EQ(shared.pace(Resource::kMatmul, 4), 0.4);
  EXPECT_EQ(shared.pace(Resource::kMemory, 2),
            cost.calibration.copy.all / cost.calibration.copy.alone);
}

TEST(Cost, OffloadedValuesComeFromAFileOrOverAGpusLink) {
  const ModelShape model = test::gpt_model_shape({});
  Program program;
  program.buffers.resize(1);
  program.buffers[0].bytes = 1'000'000'000;
  Instruction fetch;
  fetch.op = Op::kFetch;
  fetch.operands = {{OperandRole::kStored, Access::kRead, 0},
                    {OperandRole::kResident, Access::kWrite, 0}};
  for (const auto& [device, seconds] :
       std::map<DeviceKind, double>{{DeviceKind::kCpu, 1}, {DeviceKind::kCuda, 0.02}}) {
    CostOptions cost;
    cost.calibration = default_calibration(device, 1);
    EXPECT_NEAR(mesh_cost(model, {}, cost).work(program, fetch).seconds, seconds, 1e-5)
        << name_of(device);
  }
}

TEST(Cost, MeasuredSecondsOfSegmentsReplaceTheFormula) {
  const ModelShape model = test::gpt_model_shape({});
  CostOptions cost;
  cost.calibration = default_calibration(DeviceKind::kCpu, 2);
  Instruction i;
  i.op = Op::kBackward, i.block = 1, i.segment = 3;
  const Work formula = mesh_cost(model, {}, cost).work({}, i);
  const double flops = model.blocks[1].segments[3].flops;
  EXPECT_GT(formula.seconds, 2 * flops / cost.calibration.matmul[0]);
  for (const BlockShape& b : model.blocks)
    cost.measured.emplace_back(b.segments.size(), SegmentSeconds{1, 20, 300});
  EXPECT_NEAR(mesh_cost(model, {}, cost).work({}, i).seconds, 320, 1e-3);
  i.part = Part::kWeight;
  EXPECT_NEAR(mesh_cost(model, {}, cost).work({}, i).seconds, 300, 1e-3);
  i.op = Op::kForward, i.part = Part::kBoth;
  EXPECT_NEAR(mesh_cost(model, {}, cost).work({}, i).seconds, 1, 1e-3);
}

}  // namespace tutti
