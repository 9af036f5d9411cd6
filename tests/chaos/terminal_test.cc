// The command on a real terminal, and what it says of itself.
#include <algorithm>
#include <regex>

#include "support/command.h"
#include "support/pty.h"
#include "support/tiny_gpt.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

int width_of(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// What was drawn over and over on one line: the text after each "\r\033[K" up to the next or the
/// line's end.
std::vector<std::string> drawn(const std::string& text) {
  const std::string mark = "\r\033[K";
  std::vector<std::string> bars;
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    bars.push_back(text.substr(begin, text.find_first_of("\r\n", begin) - begin));
  }
  return bars;
}

TEST(Terminal, OfFortyColumnsHasABarThatFits) {
  TempFolder folder;
  Pty terminal(40);
  Command command(
      Arguments{"train", "mlp-points", "--ranks", "2", "--steps", "300", "--out", folder / "run"},
      [&] { terminal.attach(); });
  EXPECT_EQ(command.wait(), 0) << command.err();
  const auto bars = drawn(terminal.text());
  ASSERT_GE(bars.size(), 2u) << terminal.text();
  for (const std::string& bar : bars) EXPECT_LT(width_of(bar), 40) << bar;
  EXPECT_NE(bars.back().find("300/300  loss "), std::string::npos) << bars.back();
  EXPECT_NE(bars.back().find("█"), std::string::npos) << bars.back();
}

TEST(Terminal, ThatBecomesNarrowerGetsANarrowerBar) {
  TempFolder folder;
  Pty terminal(200);
  Command command(
      Arguments{"train"} + kEndlessMlp + Arguments{"--ranks", "2", "--out", folder / "run"},
      [&] { terminal.attach(); });
  const auto drawings = [&] { return drawn(terminal.so_far()).size(); };
  ASSERT_TRUE(eventually([&] { return drawings() > 0; })) << command.err();
  terminal.resize(30);
  const size_t before = drawings();
  // one may have been under way
  ASSERT_TRUE(eventually([&] { return drawings() > before + 2; })) << command.err();
  command.signal(SIGINT);
  EXPECT_EQ(command.wait(), 130) << command.err();
  const auto bars = drawn(terminal.text());
  EXPECT_GT(width_of(bars.front()), 40);
  EXPECT_LT(width_of(bars.back()), 30) << bars.back();
}

/// A model of bytes that has hardly learned: what it writes is nearly any byte.
const std::string kTinyGpt =
    tiny_gpt("lanes = 2\nsteps = 1\neval_batches = 0\nprompt = \"ab\"\nsample_bytes = 200\n");

bool has_control(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return c != '\n' && c != '\r' && c >= 0 && c < ' '; });
}

TEST(Terminal, IsNotGivenTheControlBytesOfASample) {
  TempFolder folder;
  const std::string job = folder.write("tiny.toml", kTinyGpt), run = folder / "run";
  Command train({"train", job, "--ranks", "1", "--out", run});
  ASSERT_EQ(train.wait(), 0) << train.err();
  EXPECT_TRUE(has_control(train.out())) << "a file gets the bytes that were drawn";

  const Arguments sample{"sample", run, "--bytes", "300", "--prompt", "a"};
  Command to_file(sample);
  ASSERT_EQ(to_file.wait(), 0) << to_file.err();
  EXPECT_TRUE(has_control(to_file.out()));

  Pty terminal(80);
  Command to_terminal(sample, [&] { terminal.attach(); });
  ASSERT_EQ(to_terminal.wait(), 0) << to_terminal.err();
  EXPECT_FALSE(has_control(terminal.text()));
  EXPECT_NE(terminal.text().find("\\x"), std::string::npos);
}

TEST(Terminal, IsNotGivenTheControlBytesOfAName) {
  TempFolder folder;
  Command command({"train", folder / "no\x1b[31m\xc2\x9b.toml"});
  EXPECT_EQ(command.wait(), 2);
  EXPECT_TRUE(command.says("no\\x1b[31m\\xc2\\x9b.toml is neither a built-in job nor a file"))
      << command.err();
}

TEST(Command, TellsItsVersionCommitLibrariesAndInstructions) {
  Command version({"--version"});
  EXPECT_EQ(version.wait(), 0);
  EXPECT_EQ(version.err(), "");
  const std::regex form(
      "tutti [0-9]+\\.[0-9]+\\.[0-9]+ \\(commit [0-9a-z]+\\), LibTorch [0-9.]+, "
      "(portable|fma|avx2|avx512)\n");
  EXPECT_TRUE(std::regex_match(version.out(), form)) << version.out();
}

TEST(Command, HasHelpAndProposesTheNearestCommand) {
  Command all({"help"}), bare({}), one({"help", "sample"}), unknown({"trian"});
  EXPECT_EQ(all.wait(), 0);
  EXPECT_EQ(bare.wait(), 0);
  EXPECT_EQ(all.out(), bare.out());
  EXPECT_EQ(one.wait(), 0);
  EXPECT_TRUE(one.says("--temperature")) << one.out();
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_TRUE(unknown.says("did you mean train?")) << unknown.err();
}

/// What the script says before anything is built.
std::string script_help() {
  std::FILE* pipe = ::popen("./tutti help", "r");
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(::pclose(pipe), 0);
  return text;
}

TEST(Command, HasNoCommandThatTheScriptDoesNotList) {
  Command help({"help"});
  ASSERT_EQ(help.wait(), 0);
  const std::string listed = script_help(), all = help.out();
  std::istringstream lines(all.substr(all.find("Subcommands:")));
  int commands = 0;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line) && !line.empty(); ++commands) {
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_TRUE(std::regex_search(listed, std::regex("[ /]" + name + "[ \n]")))
        << name << " in " << listed;
  }
  EXPECT_GT(commands, 10) << all;
}

TEST(Command, SaysNothingOfGpusWhereNoneIsExpected) {
  TempFolder folder;
  Command command({"train", "mlp-points", "--ranks", "1", "--steps", "1", "--out", folder / "run"});
  EXPECT_EQ(command.wait(), 0) << command.err();
  const auto there = [](const char* path) { return std::filesystem::exists(path); };
  if (there("/dev/nvidiactl") || there("/dev/dxg") || there("/proc/driver/nvidia/version")) return;
  EXPECT_FALSE(command.says("GPU")) << command.out();
  EXPECT_FALSE(command.says("device")) << command.out();
}

TEST(Command, NamesALayoutThatWorksOnce) {
  TempFolder folder;
  Command command(Arguments{"train", "mlp-points", "--ranks", "4", "--out", folder / "run"} +
                  set({"layout.pipeline=2", "layout.schedule=zbv", "train.lanes=8"}));
  EXPECT_EQ(command.wait(), 2);
  const std::string last = lines_of(command.err()).back();
  EXPECT_EQ(last,
            "tutti: with 4 ranks these work: data 2 x tensor 1 x pipeline 2, 1f1b; data 4 x tensor "
            "1 x pipeline 1");
}

}  // namespace
}  // namespace tutti
