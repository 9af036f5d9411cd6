// `tutti calibrate` and `tutti plan`, as their users run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "plan/search/calibration.h"
#include "support/command.h"

namespace tutti::testing_support {

namespace {

constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 4
width = 32
heads = 2
context = 32
vocab = 256

[data]
kind = "walk"

[train]
lanes = 4
micro_batches = 1
micro_batch_size = 2
steps = 2
)";

class PlanCommands : public testing::Test {
 protected:
  /// stdout of `tutti plan` that must succeed. What was measured on this host elsewhere is not
  /// seen.
  std::string plan(const Arguments& arguments) {
    const std::string cache = folder_ / "cache";
    Command command(Arguments{"plan", job_} + arguments,
                    [&] { ::setenv("XDG_CACHE_HOME", cache.c_str(), 1); });
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.out();
  }
  /// The same on a host whose GPUs, if it has any, are hidden.
  std::string plan_without_gpu(const Arguments& arguments) {
    Command command(Arguments{"plan", job_, "--set", "numerics.device=cuda"} + arguments,
                    [] { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); });
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.out();
  }
  /// stderr of `tutti plan` that must be refused.
  std::string refused(const Arguments& arguments) {
    Command command(Arguments{"plan", job_, "--quick"} + arguments);
    EXPECT_EQ(command.wait(), 2) << command.out();
    return command.err();
  }

  TempFolder folder_;
  std::string job_ = folder_.write("tiny.toml", kGpt);
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_F(PlanCommands, CalibrateWritesWhatPlanReads) {
  const std::string path = folder_ / "calibration.json";
  Command command({"calibrate", "--out", path});
  ASSERT_EQ(command.wait(), 0) << command.err();
  for (const char* text : {"matmul    ", " GFLOP/s   each", " GB/s   each", "inproc", "shm", "tcp",
                           "network    not measured"})
    EXPECT_TRUE(command.says(text)) << text << " is not in\n" << command.out();
  const Calibration c = parse_calibration(read_file(path), path);
  EXPECT_GT(c.matmul.front(), 1e8);
  EXPECT_GT(c.transports.at("shm").flag, 0);
  EXPECT_EQ(c.transports.at("tcp").flag, 0);
  for (const char* name : {"inproc", "shm", "tcp"})
    EXPECT_EQ(c.transports.at(name).messages.size(), 6u) << name;
  EXPECT_TRUE(has(plan({"--ranks", "2", "--calibration", path}), "calibrated: " + path));
}

TEST_F(PlanCommands, PlanSaysThatNothingWasMeasured) {
  const std::string out = plan({"--ranks", "2", "--quick"});
  EXPECT_TRUE(has(out, "not calibrated")) << out;
  EXPECT_TRUE(has(out, "by the FLOPs and bytes that they declare")) << out;
}

TEST_F(PlanCommands, PlanRanksLayoutsAndSaysWhyOthersAreNot) {
  const std::string out = plan({"--ranks", "4", "--memory", "1GiB"});
  EXPECT_TRUE(has(out, "segments measured")) << out;
  for (const char* text :
       {"  1 ", " 10 ", "data 2 x tensor 1 x pipeline 2", "rejected",
        "2 tensor ranks but the model is defined in 1 columns", "largest micro-batch in 1 GiB"})
    EXPECT_TRUE(has(out, text)) << text << " is not in\n" << out;
}

TEST_F(PlanCommands, MoreRanksThanLanesAreStages) {
  const std::string out = plan({"--ranks", "6", "--set", "train.lanes=2", "--quick"});
  EXPECT_TRUE(has(out, "pipeline 6") || has(out, "pipeline 3")) << out;
  EXPECT_TRUE(has(out, "3 data ranks but 2 lanes")) << out;
}

TEST_F(PlanCommands, AFirstLayoutThatIdlesIsSaid) {
  const std::string stages =
      plan(Arguments{"--quick", "--ranks", "4"} + set({"layout.pipeline=4", "train.lanes=1"}));
  EXPECT_TRUE(has(stages, "\nwarning  of the first layout: its ranks idle for ")) << stages;
  EXPECT_FALSE(has(plan({"--quick", "--ranks", "2"}), "warning"));
}

TEST_F(PlanCommands, LayoutKeysThatAreSetAreNotSearched) {
  const std::string picture = folder_ / "p.svg";
  const std::string out = plan({"--ranks", "4", "--quick", "--picture", picture, "--set",
                                "layout.pipeline=4", "--set", "layout.schedule=gpipe"});
  EXPECT_TRUE(has(out, "data 1 x tensor 1 x pipeline 4, gpipe")) << out;
  EXPECT_FALSE(has(out, "1f1b")) << out;
  const std::string svg = read_file(picture);
  for (const char* text :
       {"tiny: data 1 x tensor 1 x pipeline 4, gpipe", "rank 3", "activations in", "</svg>"})
    EXPECT_TRUE(has(svg, text)) << text;
}

TEST_F(PlanCommands, JsonHoldsEveryLayoutThatWasSimulatedTheBestFirst) {
  const std::string path = folder_ / "plan.json";
  const std::string out = plan({"--ranks", "2", "--quick", "--json", path});
  const nlohmann::json all = nlohmann::json::parse(read_file(path)), &layouts = all["layouts"];
  ASSERT_GT(layouts.size(), 10u);
  EXPECT_TRUE(has(out, "  " + layouts[0]["name"].get<std::string>() + "\n")) << out;
  std::set<std::string> different;
  for (const auto& layout : layouts) {
    EXPECT_GT(layout["seconds"].get<double>(), 0) << layout;
    EXPECT_GT(layout["bytes"].get<int64_t>(), 0) << layout;
    EXPECT_EQ(layout["layout"]["ranks"], 2) << layout;
    const bool staged = layout["layout"]["pipeline"] == 2;
    EXPECT_GT(layout["link_bytes"][staged ? "pipeline" : "data"].get<double>(), 0) << layout;
    EXPECT_EQ(layout["link_bytes"]["tensor"].get<double>(), 0) << layout;
    different.insert(layout["layout"].dump());
  }
  EXPECT_EQ(different.size(), layouts.size());
  ASSERT_FALSE(all["rejected"].empty());
  EXPECT_TRUE(has(all["rejected"].dump(), "2 tensor ranks but the model is defined in 1 columns"))
      << all["rejected"];
}

TEST_F(PlanCommands, AMemoryLimitThatNothingFitsIsRefusedWithTheNearest) {
  const std::string err = refused({"--ranks", "2", "--memory", "100KiB"});
  EXPECT_TRUE(has(err, "no layout of 2 ranks fits into 100 KiB per rank; the nearest:")) << err;
  EXPECT_TRUE(has(err, " needs ")) << err;
}

TEST_F(PlanCommands, WhatCannotBeReadIsRefusedByName) {
  EXPECT_TRUE(
      has(refused({"--ranks", "2", "--memory", "16 apples"}), "16 apples: not a number of bytes"));
  const std::string hosts = folder_.write("hosts", "a slots=1\nb slots=many\n");
  EXPECT_TRUE(
      has(refused({"--ranks", "2", "--hosts", hosts}), hosts + ":2: expected a name and slots=N"));
  const std::string few = folder_.write("few", "a slots=1\n");
  EXPECT_TRUE(has(refused({"--ranks", "2", "--hosts", few}), "1 slots for 2 ranks"));
}

TEST_F(PlanCommands, AJobOfAGpuIsPlannedWithoutOneByAssumedRates) {
  const std::string out = plan_without_gpu({"--ranks", "4"});
  for (const char* text : {"no GPU here; assumed are 40 TFLOP/s in float32", "segments not run",
                           "4, nccl, ", "memory without a limit", "data 4 x tensor 1 x pipeline 1"})
    EXPECT_TRUE(has(out, text)) << text << " is not in\n" << out;
  EXPECT_FALSE(has(out, "largest micro-batch")) << out;
  const std::string narrow = plan_without_gpu(
      {"--ranks", "4", "--memory", "1GiB", "--set", "numerics.precision=bfloat16"});
  for (const char* text :
       {"400 TFLOP/s in bfloat16", "at most 1 GiB each", "largest micro-batch in 1 GiB"})
    EXPECT_TRUE(has(narrow, text)) << text << " is not in\n" << narrow;
}

TEST_F(PlanCommands, WhatWillRunHereNeedsItsGpuToBePlanned) {
  Command command(
      {"train", job_, "--ranks", "2", "--set", "layout.plan=auto", "--set", "numerics.device=cuda"},
      [] { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); });
  EXPECT_EQ(command.wait(), 2) << command.out();
  EXPECT_TRUE(has(command.err(), "numerics.device = \"cuda\" but ")) << command.err();
}

TEST_F(PlanCommands, ACpusCalibrationIsRefusedForAGpu) {
  const std::string path =
      folder_.write("c.json", to_json(default_calibration(DeviceKind::kCpu, 2)));
  EXPECT_TRUE(has(refused({"--ranks", "2", "--set", "numerics.device=cuda", "--calibration", path}),
                  "--calibration " + path + " but numerics.device = \"cuda\""));
}

TEST_F(PlanCommands, OffloadIsInTheLayoutsNameAndOnAQueueOfItsOwn) {
  const std::string picture = folder_ / "p.svg";
  const std::string out = plan({"--ranks", "2", "--quick", "--picture", picture, "--set",
                                "layout.offload=optimizer", "--set", "layout.zero=1"});
  EXPECT_TRUE(has(out, "zero 1, offload optimizer")) << out;
  EXPECT_TRUE(has(read_file(picture), ">tier<"));
}

TEST_F(PlanCommands, HostsMakeLinksDearer) {
  const std::string hosts = folder_.write("hosts", "# two\na slots=2\nb slots=2\n");
  const std::string out = plan({"--ranks", "4", "--quick", "--hosts", hosts});
  EXPECT_TRUE(has(out, "4 on 2 hosts")) << out;
}

}  // namespace tutti::testing_support
