// What commands read and write outside of run folders: files of all kinds, and a stdout that takes
// nothing.
#include <sys/stat.h>

#include "support/command.h"
#include "support/pty.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

std::function<void()> stdout_to(const std::string& path) {
  return [path] { ::dup2(::open(path.c_str(), O_WRONLY), STDOUT_FILENO); };
}

/// A pipe that nobody reads.
std::function<void()> stdout_closed() {
  return [] {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(126);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
  };
}

class Output : public testing::Test {
 protected:
  /// A folder with the metrics of a run.
  std::string made_run() const {
    std::filesystem::create_directory(folder_ / "run");
    std::string lines;
    for (int step = 1; step <= 3; ++step)
      lines +=
          nlohmann::json{{"event", "step"}, {"step", step}, {"loss", 1.0 / step}}.dump() + "\n";
    folder_.write("run/metrics.jsonl", lines);
    return folder_ / "run";
  }
  /// The commands that write one file, without its name.
  std::vector<Arguments> writers() const {
    const std::string text = folder_.write("text", "to be or not to be");
    return {{"plot", made_run(), "-o"},
            {"tokenize", text, "--vocab", "258", "-o"},
            {"plan", "mlp-points", "--quick", "--ranks", "1", "--json"},
            {"plan", "mlp-points", "--quick", "--ranks", "1", "--picture"},
            {"docs", "-o"}};
  }
  TempFolder folder_;
};

TEST_F(Output, GoesThroughPipesAndLinksAndSparesReadOnlyFiles) {
  for (const Arguments& writer : writers()) {
    const std::string what = writer.front() + " " + writer.back();
    const std::string pipe = folder_ / "pipe", target = folder_.write("target", "old"),
                      link = folder_ / "link";
    std::filesystem::remove(pipe);
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::filesystem::remove(link);
    std::filesystem::create_symlink("target", link);
    const std::string locked = folder_ / "locked";
    std::filesystem::remove(locked);
    folder_.write("locked", "precious");
    ::chmod(locked.c_str(), 0444);

    // All of it has room in the pipe, so that nobody waits for a command that does not write there.
    const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_GT(::fcntl(reader.get(), F_SETPIPE_SZ, 1 << 20), 0);
    Command through(writer + Arguments{pipe}), linked(writer + Arguments{link}),
        refused(writer + Arguments{locked});
    EXPECT_EQ(through.wait(), 0) << what << through.err();
    std::string piped(1 << 20, '\0');
    piped.resize(static_cast<size_t>(
        std::max<ssize_t>(0, ::read(reader.get(), piped.data(), piped.size()))));
    EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << what;
    EXPECT_EQ(linked.wait(), 0) << what << linked.err();
    EXPECT_TRUE(std::filesystem::is_symlink(link)) << what;
    EXPECT_GT(piped.size(), 100u) << what;
    EXPECT_EQ(read_file(target), piped) << what;
    EXPECT_EQ(refused.wait(), 1) << what;
    EXPECT_TRUE(refused.says("cannot write " + locked + ": it is read-only"))
        << what << refused.err();
    EXPECT_EQ(read_file(locked), "precious") << what;
  }
}

TEST_F(Output, OfStdoutIsThatAlone) {
  const std::string run = made_run();
  // as /dev/stdout, which a mistake could replace
  Command plot({"plot", run, "-o", "/proc/self/fd/1"});
  EXPECT_EQ(plot.wait(), 0) << plot.err();
  EXPECT_TRUE(plot.out().starts_with("<svg ")) << plot.out();
  EXPECT_TRUE(plot.out().ends_with("</svg>\n")) << plot.out();
}

TEST_F(Output, OfDocsLeavesTheUsersFilesAlone) {
  std::filesystem::create_directory(folder_ / "docs");
  const std::string mine = folder_.write("docs/job.md", "my own");
  Command docs({"docs"}, [&] { (void)!::chdir(folder_.path().c_str()); });
  EXPECT_EQ(docs.wait(), 0) << docs.err();
  EXPECT_EQ(read_file(mine), "my own");
  EXPECT_TRUE(docs.out().starts_with("# ")) << docs.out().substr(0, 80);
}

TEST_F(Output, ThatCannotBeWrittenIsAFailure) {
  for (const Arguments& arguments :
       {Arguments{"jobs"}, {"explain", "gpt-kjv"}, {"docs"}, {"--help"}, {"--version"}}) {
    Command command(arguments, stdout_to("/dev/full"));
    EXPECT_EQ(command.wait(), 1) << arguments.front();
    EXPECT_TRUE(command.err().starts_with("tutti: cannot write the output: "))
        << arguments.front() << command.err();
    EXPECT_EQ(lines_of(command.err()).size(), 1u) << command.err();
  }
  // By a link of our own: were it replaced after all, the system would keep its device.
  const std::string link = folder_ / "full";
  std::filesystem::create_symlink("/dev/full", link);
  Command file({"plot", made_run(), "-o", link});
  EXPECT_EQ(file.wait(), 1);
  EXPECT_TRUE(file.says("cannot write " + link + ": No space left on device")) << file.err();
}

TEST_F(Output, ThatNobodyReadsEndsACommandQuietly) {
  Command command({"jobs"}, stdout_closed());
  EXPECT_EQ(command.wait(), 128 + SIGPIPE);
  EXPECT_EQ(command.err(), "");
}

TEST_F(Output, ThatIsLostDoesNotEndATraining) {
  const Arguments train{"train", "mlp-points", "--ranks", "2", "--steps", "20", "--out"};
  Command seen(train + Arguments{folder_ / "seen"});
  ASSERT_EQ(seen.wait(), 0) << seen.err();
  Command full(train + Arguments{folder_ / "full"}, stdout_to("/dev/full"));
  Command unread(train + Arguments{folder_ / "unread"}, stdout_closed());
  for (const auto& [command, name] : {std::pair{&full, "full"}, {&unread, "unread"}}) {
    EXPECT_EQ(command->wait(), 1) << name;
    EXPECT_TRUE(command->err().starts_with("tutti: cannot write the output")) << command->err();
    const auto events = lines_in(folder_ / name + "/events.jsonl");
    ASSERT_FALSE(events.empty()) << name;
    const auto end = nlohmann::json::parse(events.back());
    EXPECT_EQ(end.at("state_sha256"), seen.hash()) << name;
    EXPECT_TRUE(std::filesystem::exists(folder_ / name + "/checkpoints/latest")) << name;
  }
}

TEST_F(Output, ToAClosedDescriptorGetsIntoNoFile) {
  const std::string run = folder_ / "run";
  Command command({"train", "mlp-points", "--ranks", "1", "--steps", "20", "--out", run},
                  [] { ::close(STDOUT_FILENO); });
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(command.says("cannot write the output")) << command.err();
  for (const std::string name : {"metrics.jsonl", "events.jsonl"})
    for (const std::string& line : lines_in(run + "/" + name))
      EXPECT_FALSE(nlohmann::json::parse(line, nullptr, false).is_discarded())
          << name << ": " << line;
}

TEST_F(Output, DeviceIsRefusedAsAnInput) {
  // A terminal at which nobody types. /dev/zero would be as endless, and a command that read it
  // would take all memory.
  const Pty endless(80);
  const std::string device = endless.name(), fault = device + ": a device, not a file";
  const auto said = [&](const Arguments& arguments) {
    Command command(arguments);
    EXPECT_GT(command.wait(Seconds(20)), 0) << command.out();
    return command.err();
  };
  const std::string tiny =
      folder_.write("tiny.toml", "base = \"gpt-kjv\"\n[train]\nlanes = 1\n[layout]\nranks = 1\n");
  const Arguments train{"train", tiny, "--out", folder_ / "run"};
  EXPECT_NE(
      said({"train", device}).find(device + " is a pipe or a device; a job is a regular file"),
      std::string::npos);
  for (const Arguments& settings :
       {Arguments{"data.path=" + device},
        {"data.kind=tokens", "data.path=" + device, "train.sample_bytes=0"},
        {"data.tokenizer=" + device}})
    EXPECT_NE(said(train + set(settings)).find(fault), std::string::npos) << settings.front();
  EXPECT_NE(said({"tokenize", device, "--vocab", "300", "-o", folder_ / "t"}).find(fault),
            std::string::npos);
  EXPECT_NE(said({"plan", "mlp-points", "--quick", "--hosts", device}).find(fault),
            std::string::npos);
}

TEST_F(Output, NumbersOfOptionsAreRefusedWithTheirRange) {
  const auto refused = [&](const Arguments& arguments, const std::string& reason) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), 2) << arguments.front() << command.out();
    EXPECT_NE(command.err().find(reason), std::string::npos) << command.err();
  };
  const std::string run = folder_ / "run";
  refused({"sample", run, "--temperature", "nan"},
          "--temperature: nan is not a number from 0.001 to 1000");
  refused({"sample", run, "--seed", "-1"},
          "--seed: -1 is not a whole number from 0 to 18446744073709551615");
  refused({"generate", run, "-o", run, "--seed", "12345678901234567890123"},
          "--seed: 12345678901234567890123 is not");
  refused({"verify", "mlp-points", "--steps", "-3"}, "--steps: -3 is not a whole number from 1 to");
  refused({"trace", run, "--step", "-5"}, "--step: -5 is not a whole number from ");
  refused({"plan", "mlp-points", "--memory", "0.1"}, "0.1: not a number of bytes");
}

}  // namespace
}  // namespace tutti
