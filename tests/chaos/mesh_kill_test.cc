// Ranks of meshes that die, stop, or are asked to end: the others end in time and name them, or all
// stop at one step.
#include <regex>

#include "support/layout_runs.h"
#include "support/sockets.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr Seconds kPromised(1.0), kBookkeeping(0.25);

struct Case {
  std::string name, layout;
  int ranks;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// A step takes a few milliseconds; there is no end to them.
const Arguments kEndless =
    Arguments{"train"} + kEndlessMlp + set({"train.lanes=4", "model.hidden=[16, 16, 16]"});

class LostMeshRank : public testing::TestWithParam<Case> {
 protected:
  void start(const Arguments& more) {
    command_ = std::make_unique<Command>(kEndless + settings_of(GetParam().layout) +
                                         Arguments{"--out", run_} + more);
    pids_ = command_->ranks(GetParam().ranks);
    ASSERT_TRUE(reaches(run_, 20)) << command_->err();
  }
  Seconds time_to_end(pid_t pid, int signal) {
    const auto begin = std::chrono::steady_clock::now();
    ::kill(pid, signal);
    EXPECT_EQ(command_->wait(Seconds(20)), 1) << command_->out();
    return std::chrono::steady_clock::now() - begin;
  }
  void expect_nothing_left() {
    EXPECT_TRUE(eventually([&] { return command_->processes().empty(); }, Seconds(5)));
    EXPECT_EQ(half_written(run_), std::vector<std::string>{});
  }

  TempFolder folder_;
  const std::string run_ = folder_ / "run";
  std::unique_ptr<Command> command_;
  std::vector<pid_t> pids_;
};
const std::vector<Case> kCases = {
    {"Stages", "ranks=3 pipeline=3", 3},
    {"Zero", "ranks=4 zero=3", 4},
    {"StagesOverTcp", "ranks=4 pipeline=2 schedule=zero-bubble transport=tcp", 4},
    {"ZeroOverTcp", "ranks=2 zero=3 transport=tcp", 2},
};
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Of, LostMeshRank, testing::ValuesIn(kCases), name_of);

TEST_P(LostMeshRank, KilledEndsAllOthersWithinASecondAndIsNamed) {
  start({});
  const int victim = GetParam().ranks - 1;
  EXPECT_LT(time_to_end(pids_[victim], SIGKILL), kPromised + kBookkeeping);
  EXPECT_EQ(lines_of(command_->err()).at(1),
            fmt::format("tutti: rank {} (pid {}) was killed by signal 9 (Killed)", victim,
                        pids_[victim]));
  expect_nothing_left();
}

TEST_P(LostMeshRank, StoppedEndsAllOthersAfterTheTimeoutAndIsNamed) {
  start(set({"layout.timeout=2"}));
  const Seconds taken = time_to_end(pids_[1], SIGSTOP);
  EXPECT_GT(taken, Seconds(1));  // half of the time-out at least: it is no death
  EXPECT_LT(taken, Seconds(2) + kPromised + kBookkeeping);
  EXPECT_TRUE(command_->says(fmt::format("rank 1 (pid {}) was silent for", pids_[1])))
      << command_->err();
  expect_nothing_left();
}

class CutMeshRank : public LostMeshRank {};
INSTANTIATE_TEST_SUITE_P(Of, CutMeshRank, testing::Values(kCases[2], kCases[3]), name_of);

TEST_P(CutMeshRank, EndsAllOthersWithinASecondNamingRankOperationAndPeer) {
  start({});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(cut_sockets(pids_[1]), 0);
  EXPECT_EQ(command_->wait(Seconds(20)), 1) << command_->out();
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin), kPromised + kBookkeeping);
  const std::regex named("tutti: rank [0-3]: .+ with rank [0-3]: connection .+ was closed.*");
  for (const std::string& line : lines_of(command_->err()))
    EXPECT_TRUE(line.empty() || std::regex_match(line, named)) << line;
  EXPECT_TRUE(command_->says("rank 1: ")) << command_->err();
  expect_nothing_left();
}

TEST_P(LostMeshRank, CtrlCStopsAllAtOneStepWhichIsSaved) {
  start({});
  command_->signal_group(SIGINT);
  EXPECT_EQ(command_->wait(), 130) << command_->err();
  const auto step = static_cast<int64_t>(metric_of(run_, "step", "loss").size());
  EXPECT_TRUE(command_->says("stopped at step " + std::to_string(step))) << command_->out();
  EXPECT_TRUE(std::filesystem::exists(run_ + "/checkpoints/" + fmt::format("step-{:08}", step)));
  expect_nothing_left();

  Command straight(kEndless + settings_of("ranks=1") +
                   Arguments{"--steps", std::to_string(step + 5), "--out", folder_ / "straight"});
  EXPECT_EQ(straight.wait(), 0) << straight.err();
  Command resumed(Arguments{"train", "--resume", run_, "--steps", std::to_string(step + 5)} +
                  settings_of(GetParam().layout));
  EXPECT_EQ(resumed.wait(), 0) << resumed.err();
  EXPECT_EQ(resumed.hash(), straight.hash());
}

}  // namespace
}  // namespace tutti
