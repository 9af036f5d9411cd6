// Random jobs on random layouts, some of them stopped and resumed on another one, end in the state
// of one rank.
//   TUTTI_TEST_SEED     the seed of the first case (each has one of its own: the next number)
//   TUTTI_TEST_CASES    how many
//   TUTTI_TEST_SECONDS  instead: as many as begin in so many seconds (`./tutti bench chaos`)
#include "support/random_jobs.h"

#include <chrono>
#include <cstdlib>
#include <iostream>

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kSeed = 1400, kCases = 5;

uint64_t given(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::stoull(text) : otherwise;
}

std::string words(const Arguments& arguments) {
  std::string text = "build/bin/tutti";
  for (const std::string& word : arguments)
    text += word.find_first_of(" \"*|") == std::string::npos ? " " + word : " '" + word + "'";
  return text;
}

/// A run of the command that must succeed; what it was is printed where it does not.
std::string hash_of(const Arguments& arguments) {
  Command command(arguments);
  const int code = command.wait();
  EXPECT_EQ(code, 0) << words(arguments) << "\n" << command.out() << command.err();
  return code == 0 ? command.hash() : "";
}

/// What the steps showed: a stopped run evaluates where one that goes on does not.
std::vector<nlohmann::json> steps_of(const std::string& run) {
  std::vector<nlohmann::json> steps = records_of(run);
  std::erase_if(steps, [](const nlohmann::json& record) { return record.at("event") != "step"; });
  return steps;
}

/// Whether the case ends as one rank does; says what it ran where it does not.
bool is_equal(const RandomCase& drawn) {
  const TempFolder folder;
  const auto train = [&](const char* run, const Arguments& settings, const Arguments& more = {}) {
    return Arguments{"train", "mlp-points", "--out", folder / run} + set(drawn.job + settings) +
           more;
  };
  const bool stops = !drawn.resumed.empty();
  const Arguments one = train("one", {"layout.ranks=1"});
  const Arguments begin =
      train("run", drawn.layout,
            stops ? Arguments{"--steps", std::to_string(drawn.stop_at)} : Arguments{});
  const Arguments goes_on = Arguments{"train", "--resume", folder / "run"} + set(drawn.resumed);
  SCOPED_TRACE(words(one) + "\n" + words(begin) + (stops ? "\n" + words(goes_on) : ""));
  const std::string expected = hash_of(one);
  std::string found = expected.empty() ? "" : hash_of(begin);
  if (stops && !found.empty()) found = hash_of(goes_on);
  if (found.empty()) return false;
  EXPECT_EQ(found, expected);
  const auto told = [&](const char* run) {
    return stops ? steps_of(folder / run) : records_of(folder / run);
  };
  EXPECT_EQ(told("run"), told("one"));
  return found == expected && told("run") == told("one");
}

/// Several, so that they can run alongside each other.
class RandomJobs : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomJobs, testing::Range(uint64_t{0}, uint64_t{4}));

TEST_P(RandomJobs, OnRandomLayoutsEndInTheStateOfOneRank) {
  const uint64_t first = given("TUTTI_TEST_SEED", kSeed) + GetParam() * kCases,
                 cases = given("TUTTI_TEST_CASES", kCases);
  const auto seconds = std::chrono::seconds(given("TUTTI_TEST_SECONDS", 0));
  const auto begin = std::chrono::steady_clock::now();
  const RandomData data;
  uint64_t tried = 0, equal = 0, resumed = 0, resumed_equal = 0;
  const auto goes_on = [&] {
    return seconds.count() > 0 ? std::chrono::steady_clock::now() - begin < seconds : tried < cases;
  };
  for (; goes_on(); ++tried) {
    SCOPED_TRACE(
        fmt::format("again: TUTTI_TEST_SEED={} TUTTI_TEST_CASES=1 build/bin/ranks_random_jobs_test "
                    "--gtest_filter=*/0",
                    first + tried));
    const RandomCase drawn = draw_case(first + tried, data);
    const uint64_t same = is_equal(drawn) ? 1 : 0, stopped = drawn.resumed.empty() ? 0 : 1;
    equal += same, resumed += stopped, resumed_equal += same * stopped;
  }
  std::cout << fmt::format("seed {}: {} of {} equal, {} of {} resumed\n", first, equal, tried,
                           resumed_equal, resumed);
}

}  // namespace
}  // namespace tutti
