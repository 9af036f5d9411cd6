// How arguments are read, without starting the command.
#include "app/command_line.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace tutti {
namespace {

/// What the option holds after `text`, or what is wrong with it.
template <class T>
std::string read(CLI::Validator validator, const std::string& text) {
  CLI::App app("", "tutti");
  T value{};
  app.add_option("--n", value)->transform(std::move(validator));
  try {
    app.parse(std::vector<std::string>{"--n=" + text});
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return fmt::format("{}", value);
}

TEST(WholeNumbers, AreDigitsWithinTheirRange) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(read<uint64_t>(whole(0, most), "0"), "0");
  EXPECT_EQ(read<uint64_t>(whole(0, most), "18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(read<int64_t>(whole(2, 1000), "010"), "10");  // not 8
  for (const char* text : {"-1", "18446744073709551616", "12345678901234567890123", "1.5", "1e3",
                           "0x10", "nan", "inf", "1x", "1 ", "+1", " 1"})
    EXPECT_EQ(read<uint64_t>(whole(0, most), text),
              fmt::format("--n: {} is not a whole number from 0 to 18446744073709551615", text));
  EXPECT_EQ(read<int64_t>(whole(2, 1000), "1"), "--n: 1 is not a whole number from 2 to 1000");
  EXPECT_EQ(read<int64_t>(whole(2, 1000), "1001"),
            "--n: 1001 is not a whole number from 2 to 1000");
}

TEST(Numbers, AreFiniteAndWithinTheirRange) {
  EXPECT_EQ(read<double>(real(1e-3, 1e3), "0.8"), "0.8");
  EXPECT_EQ(read<double>(real(1e-3, 1e3), "1e3"), "1000");
  for (const char* text :
       {"nan", "-nan", "inf", "0", "-1", "1000.1", "1e999", "0.8x", "0,8", "hot"})
    EXPECT_EQ(read<double>(real(1e-3, 1e3), text),
              fmt::format("--n: {} is not a number from 0.001 to 1000", text));
}

class Commands : public testing::Test {
 protected:
  Commands() {
    CLI::App* train = app_.add_subcommand("train", "trains");
    train->add_option("job", job_);
    train->add_option("--ranks", ranks_)->transform(whole(0, 8));
    app_.add_subcommand("trace", "traces");
    app_.add_subcommand("help", "helps");
  }
  /// What parse says of these arguments, which it must refuse.
  std::string refused(std::vector<std::string> words) {
    words.insert(words.begin(), "tutti");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse(app_, static_cast<int>(arguments.size()), arguments.data()), 2);
    return testing::internal::GetCapturedStderr();
  }
  CLI::App app_{"", "tutti"};
  std::string job_;
  int64_t ranks_ = 0;
};

TEST_F(Commands, ThatAreMistypedAreToldTheNearestOne) {
  EXPECT_EQ(refused({"trian"}),
            "tutti: there is no command trian; did you mean train?; `tutti help` lists them\n");
  EXPECT_EQ(refused({"xyzzy\x1b"}),
            "tutti: there is no command xyzzy\\x1b; `tutti help` lists them\n");
  EXPECT_EQ(refused({"train", "--rank", "2"}),
            "tutti: unknown option --rank; did you mean --ranks?; `tutti help train` lists what it "
            "takes\n");
  EXPECT_EQ(refused({"train", "a", "b"}),
            "tutti: b is one argument too many; `tutti help train` lists what it takes\n");
  EXPECT_EQ(refused({"train", "--ranks", "-3"}),
            "tutti: --ranks: -3 is not a whole number from 0 to 8; `tutti help train` lists what "
            "it takes\n");
  EXPECT_EQ(refused({"--rank"}),
            "tutti: unknown option --rank; `tutti --help` lists what it takes\n");
}

TEST_F(Commands, HaveHelpOfTheirOwn) {
  EXPECT_NE(help_of(app_, "").find("traces"), std::string::npos);
  EXPECT_NE(help_of(app_, "train").find("--ranks"), std::string::npos);
  EXPECT_EQ(help_of(app_, "train").find("traces"), std::string::npos);
  EXPECT_THROW(help_of(app_, "trian"), ConfigError);
}

TEST(Failures, BecomeAFewLinesAndACode) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(
      guarded([]() -> int { throw ConfigError(std::vector<std::string>(3000, "a \x1b fault")); }),
      2);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 21);
  EXPECT_TRUE(said.ends_with("tutti: a \\x1b fault\ntutti: and 2980 more\n")) << said;
  testing::internal::CaptureStderr();
  EXPECT_EQ(guarded([]() -> int { throw Error("it \x07 broke"); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tutti: it \\x07 broke\n");
  EXPECT_EQ(guarded([] { return 130; }), 130);
}

}  // namespace
}  // namespace tutti
