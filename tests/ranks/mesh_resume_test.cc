// A checkpoint knows of no mesh: a run may go on sliced, in stages or whole, wherever the last one
// stopped.
#include "support/layout_pairs.h"
#include "support/layout_runs.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class MeshResume : public testing::Test {
 protected:
  void expect_same_in_parts(const std::string& settings, const std::vector<std::string>& layouts) {
    const Arguments job = Arguments{folder_.write("job.toml", kSmallGpt)} + settings_of(settings);
    const Outcome straight = train_into(folder_ / "straight", job + settings_of("ranks=1"));
    ASSERT_EQ(straight.hash.size(), 64u);
    const std::string run = folder_ / "run";
    std::string hash;
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(layouts[i]);
      const Arguments until =
          i + 1 < layouts.size() ? Arguments{"--steps", std::to_string(2 * (i + 1))} : Arguments{};
      Command command((i == 0 ? Arguments{"train"} + job + Arguments{"--out", run}
                              : Arguments{"train", "--resume", run}) +
                      until + settings_of(layouts[i]));
      ASSERT_EQ(command.wait(), 0) << command.err();
      hash = command.hash();
    }
    EXPECT_EQ(hash, straight.hash);
    for (const char* field : {"loss", "gradient_norm", "lr"})
      EXPECT_EQ(metric_of(run, "step", field), metric_of(folder_ / "straight", "step", field))
          << field;
    EXPECT_EQ(metric_of(run, "eval", "held_out_loss").back(),
              metric_of(folder_ / "straight", "eval", "held_out_loss").back());
  }
  TempFolder folder_;
};

TEST_F(MeshResume, FromDataParallelToZeroToStagesToOneRankEqualsNeverStopping) {
  expect_same_in_parts(
      "model.tied=true",
      {"ranks=3", "ranks=4 zero=3 workers=thread", "ranks=2 zero=0 pipeline=2 schedule=zbv",
       "ranks=4 zero=2 pipeline=2 schedule=1f1b transport=tcp", "ranks=1 zero=0 pipeline=1"});
}

TEST_F(MeshResume, BetweenTensorRanksStagesAndSlicesEqualsNeverStopping) {
  expect_same_in_parts(
      "train.tensor_slices=4 model.tied=true numerics.order=micro",
      {"ranks=4 tensor=4", "ranks=4 tensor=2 pipeline=2 workers=thread",
       "ranks=4 zero=3 tensor=1 pipeline=1 fold=owner", "ranks=1 tensor=1", "ranks=2 tensor=2"});
}

TEST_F(MeshResume, EveryLayoutGoesOnWithOthers) {
  const Arguments job = Arguments{folder_.write("job.toml", kSmallGpt)} +
                        settings_of("train.tensor_slices=4 model.tied=false");
  EXPECT_GE(expect_every_layout_goes_on_with_others(
                job, {"ranks=1", "ranks=3", "ranks=4 zero=3 workers=thread", "ranks=2 pipeline=2",
                      "ranks=4 tensor=2 pipeline=2 workers=thread", "ranks=2 zero=2 transport=tcp",
                      "ranks=4 tensor=4", "ranks=4 hosts=2 zero=1 shards=2",
                      "ranks=2 pipeline=2 schedule=zbv recompute=full"}),
            20);
}

}  // namespace
}  // namespace tutti
