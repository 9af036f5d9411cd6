// Tables with faults, through the real command: each is refused with the place of the fault and
// nothing is left behind, or, when the job asks for it, the record is skipped and counted.
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kJob = R"(
[model]
kind = "mlp"
hidden = [8]
[data]
kind = "csv"
held_out = 0.2
columns = ["age: number standardise", "city: one-hot Rome|Oslo", "buys: target no|yes"]
[train]
lanes = 4
micro_batch_size = 4
steps = 3
eval_batches = 1
)";

/// 40 good records, with one more line after the first 15 of them: line 17.
std::string table_with(const std::string& line) {
  std::string text = "age,city,buys\n";
  for (int i = 0; i < 40; ++i) {
    if (i == 15 && !line.empty()) text += line + "\n";
    text +=
        fmt::format("{},{},{}\n", 20 + i, i % 3 == 0 ? "Rome" : "Oslo", i % 2 == 0 ? "no" : "yes");
  }
  return text;
}

class BadData : public testing::Test {
 protected:
  Arguments train(const std::string& path, const Arguments& settings = {}) {
    return Arguments{"train", job_, "--ranks", "2", "--out", run_} + set({"data.path=" + path}) +
           set(settings);
  }
  /// Runs the command, which must fail and leave no run; returns what it said on stderr.
  std::string refused(const std::string& path, const Arguments& settings = {}) {
    Command command(train(path, settings));
    EXPECT_NE(command.wait(), 0) << command.out();
    EXPECT_FALSE(std::filesystem::exists(run_)) << command.err();
    EXPECT_TRUE(command.processes().empty());
    return command.err();
  }

  TempFolder folder_;
  const std::string job_ = folder_.write("table.toml", kJob), run_ = folder_ / "run";
};

TEST_F(BadData, AFaultOfARecordEndsTheRunAndNamesItsPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"abc,Rome,yes", ":17:1 (age): \"abc\" is not a number"},
      {"nan,Rome,yes", ":17:1 (age): \"nan\" is not a finite number"},
      {",Rome,yes", ":17:1 (age): the value is missing"},
      {"30,Roma,yes", ":17:2 (city): \"Roma\" is none of its 2 values; did you mean \"Rome\"?"},
      {"30,Rome,perhaps", ":17:3 (buys): \"perhaps\" is none of no, yes"},
      {"30,Rome", ":17:3: 2 columns, not 3"},
      {"30,\"Rome,yes", ":17:4: the quote is not closed"},
      {"30,\"Rome\"s,yes", ":17:10: text after a closing quote"},
  };
  const std::string path = folder_ / "people.csv";
  for (const auto& [line, what] : cases) {
    folder_.write("people.csv", table_with(line));
    const std::string said = refused(path);
    EXPECT_NE(said.find("tutti: " + path + what + "\n"), std::string::npos) << said;
  }
}

TEST_F(BadData, AFaultOfTheFileEndsTheRunEvenWhereRecordsAreSkipped) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ": the file is empty"},
      {"age,city,buys\n", ": the file has no records"},
      {"age,town,buys\n1,Rome,no\n", ": there is no column \"city\"; they are age, town, buys"},
      {"age,citty,buys\n1,Rome,no\n", ": there is no column \"city\"; did you mean \"citty\"?"},
      {"age,city,buys,age\n1,Rome,no,1\n", ":1:4: the name \"age\" is already that of column 1"},
      {"age,city,buys\nx,y,z\n", ": no record can be used; the first fault: "},
      {"age,city,buys\n1,Rome,no\n", ": data.held_out = 0.2 of 1 records leaves none for "},
  };
  const std::string path = folder_ / "people.csv";
  for (const auto& [text, what] : cases) {
    folder_.write("people.csv", text);
    const std::string said = refused(path, {"data.bad=skip"});
    EXPECT_NE(said.find("tutti: " + path + what), std::string::npos) << said;
  }
}

TEST_F(BadData, SkippedRecordsAreCountedAndNamed) {
  const std::string path =
      folder_.write("people.csv", table_with("abc,Rome,yes\n30,Rome\n30,\"Oslo,yes"));
  Command command(train(path, {"data.bad=skip"}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("3 skipped")) << command.out();
  for (const char* what : {":17:1 (age): \"abc\" is not a number", ":18:3: 2 columns, not 3",
                           ":19:4: the quote is not closed"}) {
    EXPECT_TRUE(command.says(path + what)) << command.out();
  }
  // The bits are those of a file that never had them.
  const std::string hash = command.hash();
  std::filesystem::remove_all(run_);
  folder_.write("people.csv", table_with(""));
  Command clean(train(path, {"data.bad=skip"}));
  EXPECT_EQ(clean.wait(), 0) << clean.err();
  EXPECT_EQ(clean.hash(), hash);
  EXPECT_FALSE(hash.empty());
}

TEST_F(BadData, AFaultOfAJsonLineNamesItsPlace) {
  std::string good;
  for (int i = 0; i < 40; ++i)
    good += fmt::format("{{\"age\": {}, \"city\": \"Rome\", \"buys\": \"no\"}}\n", i);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"age\": ", ":41:9: not JSON: "},
      {"{\"age\": \"old\", \"city\": \"Rome\", \"buys\": \"no\"}",
       ":41 (age): \"old\" is text, not a number"},
      {"[]", ":41:1: an array, not an object"},
  };
  const std::string path = folder_ / "people.jsonl";
  for (const auto& [line, what] : cases) {
    folder_.write("people.jsonl", good + line);
    const std::string said = refused(path, {"data.kind=jsonl"});
    EXPECT_NE(said.find("tutti: " + path + what), std::string::npos) << said;
  }
}

TEST_F(BadData, TheScalesAndTheResultAreTheSameOnEveryNumberOfRanks) {
  const std::string path = folder_.write("people.csv", table_with(""));
  std::string first;
  for (const char* ranks : {"1", "2", "3"}) {
    std::filesystem::remove_all(run_);
    Command command(Arguments{"train", job_, "--ranks", ranks, "--out", run_} +
                    set({"data.path=" + path}));
    ASSERT_EQ(command.wait(), 0) << command.err();
    if (first.empty()) first = command.hash();
    EXPECT_EQ(command.hash(), first) << ranks;
  }
  EXPECT_FALSE(first.empty());
}

}  // namespace
}  // namespace tutti
