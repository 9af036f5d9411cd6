// Ctrl-C: the step is finished, a checkpoint saved, and the run goes on from it as if nothing had happened.
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

struct Case {
  std::string name;
  Arguments before, after;  // layout of the run that is stopped, and of the one that goes on
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CtrlC : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Of, CtrlC,
    testing::Values(Case{"Processes", {"layout.ranks=2"}, {"layout.ranks=3"}},
                    Case{"Threads", {"layout.ranks=3", "layout.workers=thread"}, {"layout.ranks=1"}},
                    Case{
                        "Tcp", {"layout.ranks=3", "layout.transport=tcp"}, {"layout.ranks=3", "layout.transport=tcp"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(CtrlC, SavesAndTheRunGoesOnAsIfNeverStopped) {
  TempFolder folder;
  const std::string run = folder / "run";
  const Arguments job = Arguments{"train"} + kEndlessMlp;
  auto straight = [&](const std::string& name, int64_t steps) {
    Command command(job + Arguments{"--ranks", "1", "--steps", std::to_string(steps), "--out", folder / name});
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  };

  Command stopped(job + set(GetParam().before) + Arguments{"--out", run});
  ASSERT_TRUE(reaches(run, 30)) << stopped.err();
  stopped.signal_group(SIGINT);  // as a terminal does: to the launcher and all ranks
  EXPECT_EQ(stopped.wait(), 130) << stopped.err();
  const auto step = static_cast<int64_t>(metric_of(run, "step", "loss").size());
  EXPECT_TRUE(stopped.says("stopped at step " + std::to_string(step))) << stopped.out();
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/" + fmt::format("step-{:08}", step)));
  EXPECT_EQ(stopped.hash(), straight("a", step));
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
  EXPECT_TRUE(stopped.processes().empty());

  Command resumed(Arguments{"train", "--resume", run, "--steps", std::to_string(step + 10)} + set(GetParam().after));
  EXPECT_EQ(resumed.wait(), 0) << resumed.err();
  EXPECT_EQ(resumed.hash(), straight("b", step + 10));
  EXPECT_EQ(metric_of(run, "step", "loss"), metric_of(folder / "b", "step", "loss"));
}

TEST(Stop, BySigtermToAllProcessesSavesToo) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(Arguments{"train"} + kEndlessMlp + Arguments{"--ranks", "2", "--out", run});
  ASSERT_TRUE(reaches(run, 5)) << command.err();
  command.signal_group(SIGTERM);
  EXPECT_EQ(command.wait(), 130) << command.err();
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/latest/manifest.json"));
}

TEST(Stop, ByTwoSignalsEndsAtOnceWithoutSaving) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(Arguments{"train"} + kEndlessMlp + Arguments{"--ranks", "2", "--out", run});
  ASSERT_TRUE(reaches(run, 5)) << command.err();
  command.signal(SIGSTOP);  // so that the launcher sees both at once
  command.signal(SIGINT);
  command.signal(SIGTERM);
  command.signal(SIGCONT);
  EXPECT_EQ(command.wait(), 1) << command.err();
  EXPECT_TRUE(command.says("stopped at once by a second Ctrl-C")) << command.err();
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
  EXPECT_TRUE(command.processes().empty());
}

}  // namespace
}  // namespace tutti
