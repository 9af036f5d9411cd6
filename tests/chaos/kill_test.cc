// Ranks that die, are stopped or are cut off, for real: all others end in time, name the rank and
// the reason, and leave nothing behind.
#include <map>
#include <set>

#include "support/command.h"
#include "support/sockets.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// The issue promises one second from the loss to the end of every other rank; the launcher then
// reaps and reports.
constexpr Seconds kPromised(1.0), kBookkeeping(0.25);

struct Layout {
  std::string name;
  int ranks;
  Arguments settings;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }
std::string name_of(const testing::TestParamInfo<Layout>& info) { return info.param.name; }

/// Inodes of all listening tcp sockets of this machine.
std::set<std::string> listeners() {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"})
    for (const std::string& line : lines_in(table)) {
      std::istringstream fields(line);
      std::vector<std::string> words;
      for (std::string word; fields >> word;) words.push_back(word);
      if (words.size() > 9 && words[3] == "0A") inodes.insert(words[9]);
    }
  return inodes;
}

std::set<std::string> shared_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().find("tutti") != std::string::npos)
      names.insert(entry.path().filename());
  return names;
}

/// A job in full swing, and what must be true of it after its end.
class Running {
 public:
  explicit Running(const Layout& layout, const Arguments& more = {})
      : command_(Arguments{"train"} + kEndlessMlp +
                 Arguments{"--ranks", std::to_string(layout.ranks), "--out", run()} +
                 set(layout.settings) + more),
        pids_(command_.ranks(layout.ranks)) {
    EXPECT_TRUE(reaches(run(), 20)) << command_.err();
    for (pid_t pid : pids_)
      for (const auto& [fd, inode] : sockets_of(pid)) inodes_.insert(inode);
  }

  Command& command() { return command_; }
  pid_t pid(int rank) const { return pids_[rank]; }
  std::string run() const { return folder_ / "run"; }

  /// The seconds until the launcher has ended; it must report a failure.
  Seconds time_to_end(const std::function<void()>& fault) {
    const auto begin = std::chrono::steady_clock::now();
    fault();
    EXPECT_EQ(command_.wait(Seconds(20)), 1) << command_.out();
    const Seconds taken = std::chrono::steady_clock::now() - begin;
    testing::Test::RecordProperty("seconds_to_end", std::to_string(taken.count()));
    return taken;
  }
  /// The one message; what other ranks say because of it is only in the events.
  std::string cause() {
    std::vector<std::string> said;
    for (const std::string& line : lines_of(command_.err()))
      if (!line.empty()) said.push_back(line);
    EXPECT_EQ(said.size(), 1u) << command_.err();
    const auto events = lines_in(run() + "/events.jsonl");
    const auto failed = nlohmann::json::parse(events.empty() ? "{}" : events.back());
    EXPECT_EQ(failed.value("event", ""), "failed");
    if (!said.empty() && failed.contains("failures"))
      EXPECT_EQ(said[0], "tutti: " + failed.at("failures").at(0).get<std::string>());
    return said.empty() ? "" : said[0];
  }
  void expect_nothing_left() {
    EXPECT_TRUE(eventually([&] { return command_.processes().empty(); }, Seconds(5)));
    for (const std::string& inode : listeners())
      EXPECT_FALSE(inodes_.contains(inode)) << "a port is still open";
    EXPECT_EQ(shared_names(), before_);
    EXPECT_EQ(half_written(run()), std::vector<std::string>{});
  }

 private:
  TempFolder folder_;
  std::set<std::string> before_ = shared_names();
  Command command_;
  std::vector<pid_t> pids_;
  std::set<std::string> inodes_;
};

const std::vector<Layout> kLayouts = {
    {"Shm", 3, {"layout.transport=shm"}},
    {"Tcp", 3, {"layout.transport=tcp"}},
    {"TwoHosts", 4, {"layout.transport=shm", "layout.hosts=2"}},
};

class LostRank : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Over, LostRank, testing::ValuesIn(kLayouts), name_of);

TEST_P(LostRank, KilledEndsAllOthersWithinASecondAndIsNamed) {
  for (int victim : {1, 0}) {
    Running running(GetParam());
    const pid_t pid = running.pid(victim);
    const Seconds taken = running.time_to_end([&] { ::kill(pid, SIGKILL); });
    EXPECT_LT(taken, kPromised + kBookkeeping);
    EXPECT_EQ(running.cause(),
              fmt::format("tutti: rank {} (pid {}) was killed by signal 9 (Killed)", victim, pid));
    running.expect_nothing_left();
  }
}

TEST_P(LostRank, StoppedEndsAllOthersAfterTheTimeoutAndIsNamed) {
  Running running(GetParam(), set({"layout.timeout=2"}));
  const Seconds taken = running.time_to_end([&] { ::kill(running.pid(1), SIGSTOP); });
  EXPECT_GT(taken, Seconds(1));  // half of the time-out at least: it is no death
  EXPECT_LT(taken, Seconds(2) + kPromised + kBookkeeping);
  EXPECT_TRUE(running.cause().starts_with(
      fmt::format("tutti: rank 1 (pid {}) was silent for", running.pid(1))))
      << running.command().err();
  running.expect_nothing_left();
}

class CutRank : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Over, CutRank, testing::Values(kLayouts[1], kLayouts[2]), name_of);

TEST_P(CutRank, EndsAllOthersWithinASecondAndIsNamed) {
  Running running(GetParam());
  int cut = 0;
  const Seconds taken = running.time_to_end([&] { cut = cut_sockets(running.pid(1)); });
  EXPECT_GT(cut, 0);
  EXPECT_LT(taken, kPromised + kBookkeeping);
  const std::string cause = running.cause();
  EXPECT_NE(cause.find("rank 1"), std::string::npos) << running.command().err();
  EXPECT_NE(cause.find("was closed"), std::string::npos) << running.command().err();
  running.expect_nothing_left();
}

TEST_P(LostRank, DiesWithItsLauncher) {
  Running running(GetParam());
  running.command().signal(SIGKILL);
  EXPECT_EQ(running.command().wait(), 128 + SIGKILL);
  running.expect_nothing_left();
}

TEST(Verify, KilledLeavesNoRankOfTheLayoutItWasAt) {
  Command verify(Arguments{"verify"} + kEndlessMlp + Arguments{"--steps", "1000000"});
  // itself, a launcher and its first rank
  ASSERT_TRUE(eventually([&] { return verify.processes().size() >= 3; }));
  verify.signal(SIGKILL);
  EXPECT_EQ(verify.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return verify.processes().empty(); }, Seconds(5)));
}

TEST(LostRank, KilledWhileItStartsEndsAllOthersAndLeavesNoRun) {
  TempFolder folder;
  Command command(Arguments{"train"} + kEndlessMlp +
                  Arguments{"--ranks", "3", "--out", folder / "run"});
  ::kill(command.ranks(3)[2], SIGKILL);
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(command.says("rank 2")) << command.err();
  EXPECT_TRUE(command.says("was killed by signal 9")) << command.err();
  EXPECT_TRUE(command.processes().empty());
  if (metric_of(folder / "run", "step", "loss").empty())
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(LostRank, KilledWhileItSavesLeavesOnlyWholeCheckpointsToGoOnFrom) {
  TempFolder folder;
  const std::string run = folder / "run", writing = run + "/checkpoints/.writing";
  const Arguments job = Arguments{"train", "mlp-points"} +
                        set({"model.hidden=[900, 900]", "train.steps=1000", "train.eval_every=0",
                             "train.checkpoint_every=1", "train.micro_batch_size=1"});
  Command command(job + Arguments{"--ranks", "2", "--out", run});
  const pid_t writer = command.ranks(2)[0];
  ASSERT_TRUE(eventually([&] { return path_exists(run + "/checkpoints/latest"); }))
      << command.err();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(writing); }));
  ::kill(writer, SIGKILL);
  EXPECT_EQ(command.wait(), 1);
  EXPECT_EQ(half_written(run), std::vector<std::string>{});

  const int64_t next =
      std::stoll(std::filesystem::read_symlink(run + "/checkpoints/latest").string().substr(5)) + 1;
  Command resumed({"train", "--resume", run, "--steps", std::to_string(next)});
  EXPECT_EQ(resumed.wait(), 0) << resumed.err();
  Command straight(
      job + set({"train.checkpoint_every=0"}) +
      Arguments{"--ranks", "1", "--out", folder / "straight", "--steps", std::to_string(next)});
  EXPECT_EQ(straight.wait(), 0) << straight.err();
  EXPECT_EQ(resumed.hash(), straight.hash());
}

}  // namespace
}  // namespace tutti
