// Ten losses of a tiny job, pinned: what changes the arithmetic of training shows here, whatever
// changes with it.
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// The bits themselves are pinned by tests/integration/every_cpu_check and change with every change
// of a kernel's rounding, which moves these losses by 1e-8. An arithmetic mistake (a lost lane,
// another seed, a wrong scale) is off by 1e-3 and more.
constexpr double kTolerance = 1e-5;

void expect_losses(const std::string& job, const std::vector<double>& expected) {
  TempFolder folder;
  Command command(
      {"train", folder.write("golden.toml", job), "--ranks", "2", "--out", folder / "run"});
  ASSERT_EQ(command.wait(), 0) << command.err();
  const auto losses = metric_of(folder / "run", "step", "loss");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], kTolerance * expected[i]) << "step " << i + 1;
}

TEST(GoldenLosses, OfAGptAreThoseWrittenDown) {
  expect_losses(R"(
[model]
kind = "gpt"
layers = 2
width = 64
heads = 4
context = 32
tied = true
activation = "gelu"
dropout = 0.1
[data]
kind = "walk"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 4
steps = 10
optimizer = "adamw"
lr = 5e-3
beta2 = 0.95
weight_decay = 0.1
warmup = 3
clip = 1.0
eval_batches = 1
)",
                {5.448488807211886, 5.407704920749464, 5.323011526097538, 5.217488978312342,
                 5.070409055028399, 4.917100751526716, 4.764980872384708, 4.701426089081533,
                 4.549980395835478, 4.550810331356629});
}

TEST(GoldenLosses, OfAnMlpAreThoseWrittenDown) {
  expect_losses(R"(
base = "mlp-points"
[train]
steps = 10
optimizer = "sgd"
momentum = 0.9
lr = 0.05
schedule = "constant"
warmup = 0
)",
                {3.5031850038794801, 3.7873883936554193, 3.5226315958425403, 2.5974209264386445,
                 2.7166938544251025, 1.8579836253775284, 1.5094466670416296, 1.643054818501696,
                 1.2949653814430349, 1.0885262752417475});
}

}  // namespace
}  // namespace tutti
