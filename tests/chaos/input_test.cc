// Jobs that cannot run: each is refused with a clear message, a non-zero exit, and nothing left
// behind.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "support/command.h"
#include "support/sockets.h"
#include "support/tiny_gpt.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const std::string kTinyGpt = tiny_gpt("lanes = 4\nsteps = 2\neval_batches = 0\n");

class BadInput : public testing::Test {
 protected:
  /// Runs `tutti train JOB ...` into a folder that must not exist afterwards; returns what it said
  /// on stderr.
  std::string refused(int code, const Arguments& arguments,
                      const std::function<void()>& before_exec = {}) {
    const std::string run = folder_ / "run";
    Command command(Arguments{"train"} + arguments + Arguments{"--out", run}, before_exec);
    EXPECT_EQ(command.wait(), code) << command.out() << command.err();
    EXPECT_FALSE(std::filesystem::exists(run)) << command.err();
    EXPECT_TRUE(command.processes().empty());
    EXPECT_EQ(command.hash(), "");
    return command.err();
  }
  Arguments text(const std::string& path) const {
    return Arguments{job_, "--ranks", "2"} +
           set({"data.kind=text", "data.path=" + path, "data.held_out=0"});
  }

  TempFolder folder_;
  const std::string job_ = folder_.write("tiny.toml", kTinyGpt);
};

TEST_F(BadInput, EveryFaultOfAJobIsListedAtOnceWithItsLineAndTheNearestKey) {
  const std::string job =
      folder_.write("bad.toml",
                    "[model]\nlayer = 2\nwidth = \"wide\"\n[trian]\nsteps = 3\n[train]\n"
                    "lanes = 0\nsteps = 2.5\noptimizer = \"adamx\"\n");
  const auto lines = lines_of(refused(2, {job, "--set", "train.sede=3"}));
  ASSERT_EQ(lines.size(), 7u) << testing::PrintToString(lines);
  EXPECT_EQ(lines[0], "tutti: " + job + ":2: unknown key model.layer; did you mean model.layers?");
  EXPECT_EQ(lines[1], "tutti: " + job + ":3: model.width must be an integer, not \"wide\"");
  EXPECT_EQ(lines[2], "tutti: " + job + ":4: unknown section [trian]; did you mean [train]?");
  const std::string rest = testing::PrintToString(lines);
  for (const char* fault :
       {":7: train.lanes = 0 is out of range", ":8: train.steps must be an integer, not 2.5",
        ":9: train.optimizer", "train.sede; did you mean train.seed?"})
    EXPECT_NE(rest.find(fault), std::string::npos) << fault << " in " << rest;
}

TEST_F(BadInput, AnUnknownOptionIsRefused) {
  EXPECT_NE(refused(2, {job_, "--rank", "2"}).find("--rank"), std::string::npos);
  EXPECT_NE(refused(2, {job_, "--set", "train.seed"}).find("expected section.key=value"),
            std::string::npos);
  EXPECT_NE(refused(2, {"no-such-job"}).find("neither a built-in job nor a file"),
            std::string::npos);
}

TEST_F(BadInput, AJobThatIsNoTomlIsRefusedWithItsLine) {
  EXPECT_NE(refused(2, {folder_.write("broken.toml", "[model]\nkind = \n")}).find("broken.toml:2"),
            std::string::npos);
}

TEST_F(BadInput, ABatchThatCannotBeCutIsRefused) {
  const std::string heads = refused(2, {job_, "--set", "model.heads=3"});
  EXPECT_NE(heads.find("model.width = 32 cannot be cut into model.heads = 3"), std::string::npos)
      << heads;
  const std::string empty = refused(2, {job_, "--set", "train.micro_batch_size=0"});
  EXPECT_NE(empty.find("train.micro_batch_size = 0 is out of range"), std::string::npos) << empty;
}

TEST_F(BadInput, MoreRanksThanLanesAreRefused) {
  const std::string said = refused(2, {job_, "--ranks", "5"});
  EXPECT_NE(said.find("layout.ranks = 5 but train.lanes = 4"), std::string::npos) << said;
}

TEST_F(BadInput, AMissingDataFileIsNamed) {
  const std::string said = refused(1, text("/no/such/file.txt"));
  EXPECT_NE(said.find("/no/such/file.txt: No such file or directory"), std::string::npos) << said;
}

TEST_F(BadInput, TheMissingKingJamesTextPointsToSetup) {
  const std::string said =
      refused(1, text("kjv"), [] { ::setenv("TUTTI_DATA", "/no/such/folder", 1); });
  EXPECT_NE(said.find("/no/such/folder/kjv.txt: the King James text is missing; run ./tutti setup"),
            std::string::npos);
}

TEST_F(BadInput, AnEmptyDataFileIsNamed) {
  const std::string path = folder_.write("empty.txt", "");
  EXPECT_NE(refused(1, text(path)).find(path + ": the file is empty"), std::string::npos);
}

TEST_F(BadInput, ATruncatedDataFileIsNamed) {
  const std::string path = folder_.write("short.txt", "In the beginning");  // a record is 17 bytes
  const std::string said = refused(1, text(path));
  EXPECT_NE(said.find(path + ": 16 bytes are too short"), std::string::npos) << said;
}

TEST_F(BadInput, DataThatIsAFolderIsNamed) {
  EXPECT_NE(refused(1, text(folder_.path())).find(folder_.path() + ": a folder, not a file"),
            std::string::npos);
}

TEST_F(BadInput, ABusyPortIsNamed) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int port = free_ports(2);  // the second rank's is the next one
  sockaddr_in address = loopback(port);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const std::string said =
      refused(1, Arguments{job_, "--ranks", "2"} +
                     set({"layout.transport=tcp", "layout.port=" + std::to_string(port)}));
  EXPECT_NE(said.find(fmt::format("tutti: port {} on 127.0.0.1 is already in use", port)),
            std::string::npos)
      << said;
}

TEST_F(BadInput, SharedSegmentsThatCannotBeAllocatedAreFoundAtTheStart) {
  const std::string said = refused(1, {job_, "--ranks", "2"}, [] {
    const rlimit limit{64 << 10, 64 << 10};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_NE(said.find("cannot allocate"), std::string::npos) << said;
  EXPECT_NE(said.find("ulimit -f"), std::string::npos) << said;
  EXPECT_EQ(said.find("signal"), std::string::npos) << said;
}

TEST_F(BadInput, AnOutputFolderThatCannotBeMadeIsNamed) {
  const std::string file = folder_.write("file", "");
  Command command({"train", job_, "--out", file + "/run"});
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(command.says(file + "/run: Not a directory")) << command.err();
  Command onto({"train", job_, "--out", file});
  EXPECT_EQ(onto.wait(), 1);
  EXPECT_TRUE(onto.says(file + ": it exists and is not a folder")) << onto.err();
}

TEST_F(BadInput, AnEmptyOutputFolderOfTheUserSurvivesAFailure) {
  std::filesystem::create_directory(folder_ / "mine");
  Command command(Arguments{"train", "--out", folder_ / "mine"} + text("/no/such/file.txt"));
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "mine"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "mine"));
}

}  // namespace
}  // namespace tutti
