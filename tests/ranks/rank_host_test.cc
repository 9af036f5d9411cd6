// Ranks that another program forks: they are the launcher's children, share one load of the
// libraries, and nothing of them is left when something goes wrong on the way. And many ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "support/layout_runs.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kTiny = R"(
[model]
kind = "mlp"
inputs = 4
hidden = [8]
classes = 2
[data]
kind = "points"
[train]
lanes = 320
micro_batch_size = 1
steps = 2
eval_every = 0
eval_batches = 0
)";

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
  return -1;
}

TEST(RankHost, ItsRanksAreTheLaunchersChildrenAndItIsGone) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  Command command(
      {"train", job, "--ranks", "3", "--out", folder / "run", "--set", "train.steps=100000"});
  const std::vector<pid_t> ranks = command.ranks(3);
  for (pid_t rank : ranks) EXPECT_EQ(parent_of(rank), command.pid());
  EXPECT_EQ(command.processes().size(), 4u) << "the launcher and three ranks";

  // They die with it, though it did not fork them.
  command.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return command.processes().empty(); }));
}

/// The program that loads libraries for the command, before it has forked a rank.
pid_t loading(const Command& command) {
  std::vector<pid_t> both;
  EXPECT_TRUE(eventually([&] {
    both = command.processes();
    return both.size() == 2 && std::count(both.begin(), both.end(), command.pid()) == 1;
  })) << command.err();
  return both[0] == command.pid() ? both[1] : both[0];
}

TEST(RankHost, EndsWhenItsLauncherIsKilledWhileItLoads) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  Command command({"train", job, "--ranks", "2", "--out", folder / "run"});
  const pid_t host = loading(command);
  ::kill(host, SIGSTOP);  // so that it loads no further until the launcher is gone
  command.signal(SIGKILL);
  EXPECT_EQ(command.wait(), 128 + SIGKILL);
  ::kill(host, SIGCONT);
  EXPECT_TRUE(eventually([&] { return command.processes().empty(); }));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(RankHost, ThatCrashesWhileItLoadsIsSaidToHaveCrashed) {
  Command command({"train", "mlp-points", "--ranks", "2"});
  ::kill(loading(command), SIGKILL);
  EXPECT_EQ(command.wait(), 128 + SIGKILL);
  EXPECT_EQ(lines_of(command.err()).size(), 1u) << command.err();
  EXPECT_TRUE(command.says("killed by signal 9 (Killed)")) << command.err();
}

TEST(RankHost, AVariableThatSomebodyLeftInTheEnvironmentChangesNothing) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  for (const char* stale : {"1:1", "99:1", "nonsense"}) {
    Command command({"train", job, "--ranks", "2", "--out", folder / stale},
                    [stale] { ::setenv("TUTTI_RANK_HOST", stale, 1); });
    EXPECT_EQ(command.wait(), 0) << command.err();
  }
}

TEST(RankHost, SixtyFourRanksEndWithTheStateOfOne) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  const Outcome one = train_into(folder / "one", {job, "--ranks", "1"});
  EXPECT_EQ(train_into(folder / "many", {job, "--ranks", "64"}), one);
}

TEST(RankHost, ThreeHundredThreadsEndWithTheStateOfOne) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  const Outcome one = train_into(folder / "one", {job, "--ranks", "1"});
  EXPECT_EQ(train_into(folder / "many", {job, "--ranks", "300", "--set", "layout.workers=thread"}),
            one);
}

TEST(RankHost, AsManyRanksAsTheFilesAllowStartAndMoreAreRefused) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTiny);
  const auto few_files = [] {
    const rlimit limit{256, 256};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  struct Case {
    std::string workers, transport;
    int most;
  };
  for (const Case& c :
       {Case{"process", "shm", 64}, {"thread", "inproc", 64}, {"thread", "tcp", 9}}) {
    const Arguments arguments =
        Arguments{"train", job, "--out", folder / c.transport} +
        set({"layout.workers=" + c.workers, "layout.transport=" + c.transport});
    Command more(arguments + Arguments{"--ranks", std::to_string(c.most + 1)}, few_files);
    EXPECT_EQ(more.wait(), 2);
    EXPECT_TRUE(more.says(fmt::format("this host starts at most {} ranks", c.most))) << more.err();
    EXPECT_FALSE(std::filesystem::exists(folder / c.transport));
    Command most(arguments + Arguments{"--ranks", std::to_string(c.most)}, few_files);
    EXPECT_EQ(most.wait(), 0) << most.err();
  }
}

TEST(RankHost, WhatTheProgramRefusesIsTheCommandsAnswer) {
  Command command({"train", "mlp-points", "--set", "layout.pipeline=9", "--ranks", "9"});
  EXPECT_EQ(command.wait(), 2) << command.out() << command.err();
  EXPECT_FALSE(command.says("has ended")) << command.err();
}

}  // namespace
}  // namespace tutti
