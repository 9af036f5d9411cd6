// A loss or gradient that is not finite stops the job before anything of its step is written, and
// says where.
#include "support/command.h"
#include "support/tiny_gpt.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const std::string kDiverging = tiny_gpt(
    "lanes = 5\nmicro_batches = 2\nsteps = 20\noptimizer = \"sgd\"\nlr = 1e6\nclip = 0\n"
    "schedule = \"constant\"\n",
    "layers = 2\ntied = true\n");

TEST(NonFinite, LossNamesStepLaneAndBlockTheSameOnAnyLayout) {
  TempFolder folder;
  const std::string job = folder.write("diverging.toml", kDiverging);
  std::string expected;
  for (const Arguments& layout : {Arguments{"layout.ranks=1"},
                                  {"layout.ranks=2"},
                                  {"layout.ranks=3", "layout.transport=tcp"},
                                  {"layout.ranks=5", "layout.hosts=2"},
                                  {"layout.ranks=4", "layout.workers=thread"},
                                  {"layout.ranks=3", "layout.zero=2"},
                                  {"layout.ranks=3", "layout.zero=3"},
                                  {"layout.ranks=4", "layout.pipeline=2", "layout.zero=3"},
                                  {"layout.ranks=2", "layout.pipeline=2", "layout.schedule=zbv"},
                                  {"layout.ranks=4", "layout.pipeline=2", "layout.zero=1"}}) {
    const std::string run = folder / ("run" + layout[0] + layout.back());
    Command command(Arguments{"train", job, "--out", run} + set(layout));
    EXPECT_EQ(command.wait(), 1) << command.out();
    if (expected.empty()) expected = command.err();
    EXPECT_EQ(command.err(), expected) << testing::PrintToString(layout);
    const size_t committed = metric_of(run, "step", "loss").size();
    EXPECT_TRUE(command.says(fmt::format("tutti: step {}, lane ", committed + 1))) << command.err();
    EXPECT_TRUE(command.processes().empty());
    EXPECT_EQ(half_written(run), std::vector<std::string>{});
  }
  EXPECT_NE(expected.find("micro-batch"), std::string::npos) << expected;
  EXPECT_NE(expected.find("the loss is not finite; the first block with a non-finite output is "),
            std::string::npos);
  EXPECT_NE(expected.find("blocks."), std::string::npos) << expected;
}

TEST(NonFinite, LossKeepsTheCheckpointsBeforeIt) {
  TempFolder folder;
  const std::string job = folder.write("diverging.toml", kDiverging), run = folder / "run";
  Command command(Arguments{"train", job, "--ranks", "2", "--out", run} +
                  set({"train.checkpoint_every=1", "layout.save_beside=false"}));
  EXPECT_EQ(command.wait(), 1);
  const size_t committed = metric_of(run, "step", "loss").size();
  ASSERT_GT(committed, 0u);
  EXPECT_EQ(std::filesystem::read_symlink(run + "/checkpoints/latest"),
            fmt::format("step-{:08}", committed));
  Command again({"train", "--resume", run, "--ranks", "3"});
  EXPECT_EQ(again.wait(), 1);
  EXPECT_EQ(again.err(), command.err());
}

}  // namespace
}  // namespace tutti
