// What a user does with the `tutti` command on a GPU host: real processes, real kills, one GPU for
// all ranks.
#include "support/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <regex>

#include "base/bytes.h"
#include "device/library.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// Of the size of fashion-mlp, on data that every host has.
constexpr const char* kMlp = R"(
[model]
kind = "mlp"
inputs = 784
hidden = [256, 128]
classes = 10
dropout = 0.2
init = "he-normal"
[loss]
label_smoothing = 0.05
[data]
kind = "points"
[train]
lanes = 4
micro_batch_size = 64
steps = 12
lr = 2e-3
weight_decay = 0.01
groups = ["*.bias weight_decay=0"]
clip = 1.0
eval_every = 6
eval_batches = 1
)";

const Arguments kCuda = set({"numerics.device=cuda"}), kCpu = set({"numerics.device=cpu"});
const Arguments kGpt = Arguments{"gpt-kjv"} + set({"train.sample_bytes=0", "train.eval_batches=1"});

class GpuCommand : public testing::Test {
 protected:
  /// What a run of the command says that must end well.
  std::string well(const Arguments& arguments) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
    hash_ = command.hash();
    EXPECT_EQ(hash_.size(), 64U) << command.out() << command.err();
    return command.out();
  }
  std::string hash_of(const Arguments& arguments) {
    well(arguments);
    return hash_;
  }
  std::string train(const std::string& name, const Arguments& arguments) {
    return hash_of(Arguments{"train"} + arguments + Arguments{"--out", folder_ / name});
  }
  Arguments resume(const std::string& name, int steps) const {
    return {"train", "--resume", folder_ / name, "--steps", std::to_string(steps)};
  }

  TempFolder folder_;
  const std::string mlp_ = folder_.write("mlp.toml", kMlp);
  std::string hash_;  ///< of the last run
};

// Two lanes: more have layouts on more ranks, of which each takes seconds to start.
TEST_F(GpuCommand, AllLayoutsOfABfloat16GptHaveOneState) {
  Command command(Arguments{"verify", "gpt-kjv", "--steps", "4"} +
                  set({"numerics.device=cuda", "numerics.precision=bfloat16", "train.lanes=2",
                       "model.layers=2"}));
  EXPECT_EQ(command.wait(Seconds(600)), 0) << command.out() << command.err();
  EXPECT_TRUE(command.out().ends_with(" layouts, one state\n")) << command.out();
  EXPECT_FALSE(command.says("DIFFERS")) << command.out();
}

TEST_F(GpuCommand, AFloat16RunRepeatsItselfWithAndWithoutAGraph) {
  const Arguments half =
      Arguments{mlp_, "--ranks", "1"} + set({"numerics.device=cuda", "numerics.precision=float16"});
  const std::string first = train("first", half);
  EXPECT_EQ(train("second", half), first);
  EXPECT_EQ(train("plain", half + set({"layout.graph=false"})), first);
  const std::vector<double> losses = metric_of(folder_ / "first", "step", "loss");
  EXPECT_EQ(losses.size(), 12U);
  EXPECT_EQ(metric_of(folder_ / "plain", "step", "loss"), losses);
  EXPECT_NE(train("other", half + set({"train.seed=2"})), first);  // the hash says something
}

/// Two ranks on the GPU in full swing, and how they end.
class LostGpuRank : public GpuCommand {
 protected:
  void start(const Arguments& more = {}) {
    command_ =
        std::make_unique<Command>(Arguments{"train"} + kEndlessMlp + kCuda +
                                  Arguments{"--ranks", "2", "--out", folder_ / "run"} + more);
    pids_ = command_->ranks(2);
    ASSERT_EQ(pids_.size(), 2U);
    ASSERT_TRUE(
        eventually([&] { return command_->says("\nstep     1/1000000  loss "); }, Seconds(60)))
        << command_->out() << command_->err();
    ASSERT_TRUE(reaches(folder_ / "run", 20)) << command_->err();  // captured steps by now
  }
  /// The first line of what went wrong.
  std::string cause_of(int number, Seconds limit) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(::kill(pids_[1], number), 0);
    EXPECT_EQ(command_->wait(limit), 1) << command_->out() << command_->err();
    const Seconds taken = std::chrono::steady_clock::now() - begin;
    std::printf("ended %.2f s after signal %d:\n%s", taken.count(), number,
                command_->err().c_str());
    for (const std::string& line : lines_of(command_->err()))
      if (line.starts_with("tutti: ")) return line;
    return "";
  }
  void expect_nothing_left() {
    EXPECT_TRUE(eventually([&] { return command_->processes().empty(); }, Seconds(2)));
    for (pid_t pid : pids_)
      EXPECT_TRUE(::kill(pid, 0) == -1 && errno == ESRCH) << "pid " << pid << " is left";
    EXPECT_EQ(half_written(folder_ / "run"), std::vector<std::string>{});
  }

  std::unique_ptr<Command> command_;
  std::vector<pid_t> pids_;
};

TEST_F(LostGpuRank, KilledEndsTheOtherAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(cause_of(SIGKILL, Seconds(5)),
            fmt::format("tutti: rank 1 (pid {}) was killed by signal 9 (Killed)", pids_[1]));
  expect_nothing_left();
}

TEST_F(LostGpuRank, StoppedEndsTheOtherAfterTheTimeoutAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start(set({"layout.timeout=3"})));
  const std::string begin = fmt::format("tutti: rank 1 (pid {}) was silent for ", pids_[1]);
  EXPECT_EQ(cause_of(SIGSTOP, Seconds(12)).substr(0, begin.size()), begin);
  expect_nothing_left();
}

TEST_F(GpuCommand, AJobThatCannotFitIsRefusedWithItsParts) {
  Command command(Arguments{"train", "gpt2-124m", "--out", folder_ / "run"} +
                  set({"train.micro_batch_size=4096"}));
  const int code = command.wait(Seconds(20));
  EXPECT_TRUE(code == 1 || code == 2) << code << command.out() << command.err();
  const std::regex form(
      "needs ([0-9.]+ [MGT]iB) of .+, which has ([0-9.]+ [MGT]iB) free; the largest parts of it: "
      "([a-z0-9 -]+) ([0-9.]+ [MGT]iB), ([a-z0-9 -]+) ([0-9.]+ [MGT]iB)");
  const std::string said = command.err();
  std::smatch parts;
  ASSERT_TRUE(std::regex_search(said, parts, form)) << command.out() << said;
  const int64_t wanted = parse_bytes(parts[1]), free = parse_bytes(parts[2]);
  const int64_t largest = parse_bytes(parts[4]), next = parse_bytes(parts[6]);
  EXPECT_GT(wanted, free) << said;
  EXPECT_GT(next, 1 << 30) << said;
  EXPECT_GE(largest, next) << said;
  EXPECT_LE(largest + next, wanted / 50 * 51) << said;  // all three are rounded to three digits
  EXPECT_FALSE(command.says("\nstep     1/")) << command.out();
  EXPECT_TRUE(eventually([&] { return command.processes().empty(); }, Seconds(2)));
}

TEST_F(GpuCommand, ARunGoesFromTheCpuToTheGpuAndBack) {
  train("run", kGpt + kCpu + Arguments{"--ranks", "2", "--steps", "4"});
  const std::string there = well(resume("run", 8) + kCuda);
  EXPECT_NE(there.find("\nnotice  numerics.device: cpu -> cuda"), std::string::npos) << there;
  EXPECT_NE(there.find("\ndevice  "), std::string::npos) << there;
  const std::string back = well(resume("run", 12) + kCpu + Arguments{"--ranks", "2"});
  EXPECT_NE(back.find("\nnotice  numerics.device: cuda -> cpu"), std::string::npos) << back;
  const std::vector<double> losses = metric_of(folder_ / "run", "step", "loss");
  ASSERT_EQ(losses.size(), 12U);
  for (size_t i = 0; i < losses.size(); ++i) {
    SCOPED_TRACE(fmt::format("step {}: loss {}", i + 1, losses[i]));
    EXPECT_TRUE(std::isfinite(losses[i]));
    // batches differ by less; a state that is lost, by 1
    if (i > 0) EXPECT_LT(losses[i], losses[i - 1] + 0.15);
  }
  EXPECT_LT(losses[7], losses[3]);
  EXPECT_LT(losses[11], losses[7]);
}

TEST_F(GpuCommand, ARunThatStoppedEqualsOneThatNeverDid) {
  const std::string straight = train("straight", kGpt + kCuda + Arguments{"--steps", "8"});
  EXPECT_NE(train("run", kGpt + kCuda + Arguments{"--steps", "4"}), straight);
  const std::string said = well(resume("run", 8));
  EXPECT_EQ(hash_, straight);
  EXPECT_NE(said.find("\nnotice  goes on from step 4, "), std::string::npos) << said;
  EXPECT_EQ(said.find("\nnotice  numerics"), std::string::npos) << said;
  EXPECT_EQ(metric_of(folder_ / "run", "step", "loss"),
            metric_of(folder_ / "straight", "step", "loss"));
}

TEST_F(GpuCommand, CheckpointsLieBesideEachOtherAndOneThatIsDueWaitsItsTurn) {
  const std::string straight = train("straight", Arguments{mlp_, "--steps", "7"} + kCuda);
  train("run", Arguments{mlp_, "--steps", "5"} + kCuda + set({"train.checkpoint_every=1"}));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run/checkpoints"))
    if (entry.is_directory() && !entry.is_symlink()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  ASSERT_GE(names.size(), 2U);
  EXPECT_EQ(names.front(), "step-00000001");
  EXPECT_EQ(names.back(), "step-00000005");
  EXPECT_EQ(half_written(folder_ / "run"), std::vector<std::string>{});
  well(resume("run", 7));
  EXPECT_EQ(hash_, straight);
}

/// A variable under which no GPU can be used, and what names it.
struct Hidden {
  const char *name, *variable, *value, *reason;
};
void PrintTo(const Hidden& hidden, std::ostream* out) { *out << hidden.name; }

class HiddenGpu : public testing::TestWithParam<Hidden> {
 protected:
  const std::function<void()> hide_ = [] { ::setenv(GetParam().variable, GetParam().value, 1); };
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(
    By, HiddenGpu,
    testing::Values(Hidden{"Library", "TUTTI_CUDA_LIBRARY", "/nonexistent",
                           "Tutti's GPU library /nonexistent cannot be opened ("},
                    Hidden{"Devices", "CUDA_VISIBLE_DEVICES", "", "CUDA_VISIBLE_DEVICES"}),
    [](const auto& info) { return info.param.name; });

TEST_P(HiddenGpu, IsRefusedWhereItIsAskedFor) {
  Command command(
      Arguments{"train", "mlp-points", "--steps", "2", "--out", folder_ / "run"} + kCuda, hide_);
  EXPECT_EQ(command.wait(), 2) << command.out() << command.err();
  EXPECT_TRUE(command.err().starts_with("tutti: numerics.device = \"cuda\" but ")) << command.err();
  EXPECT_NE(command.err().find(GetParam().reason), std::string::npos) << command.err();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_P(HiddenGpu, LeavesTheCpuWithTheReason) {
  Command command(
      Arguments{"train", "mlp-points", "--steps", "2", "--ranks", "2", "--out", folder_ / "run"},
      hide_);
  EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
  EXPECT_NE(command.value("device  cpu: ").find(GetParam().reason), std::string::npos)
      << command.out();
  EXPECT_EQ(command.hash().size(), 64U) << command.out();
}

TEST_F(GpuCommand, DoctorNamesTheGpuAndLacksNothingOfIt) {
  Command command({"doctor"});
  EXPECT_EQ(command.wait(), 0) << command.out() << command.err();
  const std::string name = device_library().devices().at(0).name;
  EXPECT_TRUE(command.value("GPU 0      ").starts_with(name + ", ")) << name << "\n"
                                                                     << command.out();
  EXPECT_FALSE(command.says("could not be measured")) << command.out();
  EXPECT_TRUE(command.says("\nJobs train on the GPU here")) << command.out();
}

}  // namespace
}  // namespace tutti
