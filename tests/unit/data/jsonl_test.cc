#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "unit/data/table_case.h"

namespace tutti {
namespace {

using namespace table_case;  // NOLINT(google-build-using-namespace)

const std::vector<std::string> kPeople = {"age: number", "city: category hash=8",
                                          "sees: one-hot true|false", "grade: target classes=4"};
const std::string kGood = R"({"age": 30, "city": "Rome", "sees": true, "grade": 3})";

Table people(const std::string& text, DataReport& report, const DataConfig& config = plain()) {
  return parse_jsonl(text, "people.jsonl", config, columns_of(kPeople), report);
}

TEST(JsonlTable, ValuesOfEveryKindBecomeNumbersAndIds) {
  DataReport report;
  const Table table = people("\xef\xbb\xbf" + kGood + "\r\n\n" +
                                 R"({"grade":0,"more":{"age":7,"x":[1,{"city":2}]},"age":-2.5e1,)"
                                 R"("city":"\u0052ome","sees":false})",
                             report);
  EXPECT_EQ(table.records, 2);
  EXPECT_EQ(table.numbers, (std::vector<float>{30, -25}));
  EXPECT_EQ(table.ids, (std::vector<int32_t>{kRomeBelow8, 0, kRomeBelow8, 1}));
  EXPECT_EQ(table.targets, (std::vector<float>{3, 0}));
}

TEST(JsonlTable, EveryFaultOfARecordNamesFileLineColumnAndWhat) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"age": "30", "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): \"30\" is text, not a number"},
      {R"({"age": true, "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): true is a truth, not a number"},
      {R"({"age": [1], "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): an array, not a value"},
      {R"({"age": {"a":1}, "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): an object, not a value"},
      {R"({"age": null, "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): the value is missing"},
      {R"({"city": "Rome", "sees": true, "grade": 3})", "2 (age): the value is missing"},
      {R"({"age": 1e39, "city": "Rome", "sees": true, "grade": 3})",
       "2 (age): \"1e39\" is out of a float's range"},
      {R"({"age": 1, "city": "Rome", "sees": 1, "grade": 3})",
       "2 (sees): \"1\" is none of true, false"},
      {R"({"age": 1, "city": "Rome", "sees": true, "grade": 4})",
       "2 (grade): \"4\" is not a whole number below 4"},
      {R"({"age": 1, "age": 2, "city": "Rome"})", "2 (age): the name comes twice in the object"},
      {"[1, 2]", "2:1: an array, not an object"},
      {"7", "2:1: a number, not an object"},
      {"null", "2:1: null, not an object"},
  };
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  for (const auto& [line, what] : cases) {
    DataReport report;
    const std::string text = kGood + "\n" + line + "\n";
    EXPECT_EQ(fault([&] { people(text, report); }), "people.jsonl:" + what) << line;
    EXPECT_EQ(people(text + kGood, report, skip).records, 2) << line;
    EXPECT_EQ(report.skipped, 1) << line;
    EXPECT_EQ(report.faults, (std::vector<std::string>{"people.jsonl:" + what})) << line;
  }
}

TEST(JsonlTable, ALineThatIsNoJsonIsNamedByItsCharacter) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"age": 1)", "2:10: not JSON: "},         {R"({"age": nan})", "2:10: not JSON: "},
      {R"({"age": 1} x)", "2:12: not JSON: "},      {R"({"age": 1e999})", "2:13: not JSON: "},
      {"{\"city\": \"\xff\"}", "2:11: not JSON: "}, {std::string(100000, '{'), "2:2: not JSON: "},
  };
  for (const auto& [line, what] : cases) {
    DataReport report;
    const std::string said = fault([&] { people(kGood + "\n" + line + "\n", report); });
    EXPECT_TRUE(said.starts_with("people.jsonl:" + what)) << said;
    EXPECT_LT(said.size(), 200u);
  }
  DataReport report;  // nested deeply, but JSON
  const std::string deep =
      R"({"x":)" + std::string(100000, '[') + std::string(100000, ']') + "," + kGood.substr(1);
  EXPECT_EQ(people(deep, report).records, 1);
}

TEST(JsonlTable, AColumnThatNoRecordHasIsNamedWithTheNearestKey) {
  DataReport report;
  const std::string slip = R"({"agee": 30, "city": "Rome", "sees": true, "grade": 3})";
  EXPECT_EQ(fault([&] { people(slip, report); }),
            "people.jsonl:1 (age): the value is missing; did you mean \"agee\"?");
  DataConfig zero = plain();
  zero.missing = MissingValue::kZero;
  EXPECT_EQ(fault([&] { people(slip, report, zero); }),
            "people.jsonl: no record has a column \"age\"; did you mean \"agee\"?");
}

TEST(JsonlTable, MutatedAndRandomFilesAreReadOrRefusedAndNothingElse) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  std::string whole;
  for (int i = 0; i < 6; ++i) whole += kGood + "\n";
  for (uint64_t round = 0; round < 2000; ++round) {
    const std::string text = mutated(whole, seed, round);
    const std::vector<char> exact(text.begin(), text.end());
    DataReport report;
    try {
      const Table table = parse_jsonl({exact.data(), exact.size()}, "people.jsonl", skip,
                                      columns_of(kPeople), report);
      ASSERT_EQ(table.numbers.size(), static_cast<size_t>(table.records));
      for (const float value : table.numbers) ASSERT_TRUE(std::isfinite(value));
    } catch (const Error& error) {
      ASSERT_TRUE(std::string(error.what()).starts_with("people.jsonl")) << error.what();
    }
  }
}

TEST(JsonlText, TheTextsOfAColumnAreJoinedByLineEnds) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tutti-{}.jsonl", getpid())).string();
  const auto write = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  };
  write(R"({"body": "In the\nbeginning", "id": 1})"
        "\n"
        R"({"id": 2, "body": "was"})"
        "\n");
  DataReport report;
  EXPECT_EQ(read_jsonl_text(path, "body", plain(), report), "In the\nbeginning\nwas\n");
  EXPECT_EQ(fault([&] { read_jsonl_text(path, "bodi", plain(), report); }),
            path + ":1 (bodi): the value is missing; did you mean \"body\"?");
  EXPECT_EQ(fault([&] { read_jsonl_text(path, "id", plain(), report); }),
            path + ":1 (id): 1 is not text");
  write("{\"body\": \"a\"}\n{\"body\": 3}\n{\"body\": \"b\"}\n{oops\n");
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  EXPECT_EQ(read_jsonl_text(path, "body", skip, report), "a\nb\n");
  EXPECT_EQ(report.skipped, 2);
  write("{\"body\": \"a\"}\n{\"body\": null}\n{}\n{\"body\": \"b\"}\n");
  EXPECT_EQ(fault([&] { read_jsonl_text(path, "body", plain(), report); }),
            path + ":2 (body): the value is missing");
  DataConfig drop = plain();
  drop.missing = MissingValue::kDrop;
  report = {};
  EXPECT_EQ(read_jsonl_text(path, "body", drop, report), "a\nb\n");
  EXPECT_EQ(report.skipped, 2);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tutti
