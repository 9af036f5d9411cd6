#include "data/tables/csv.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/philox.h"
#include "unit/data/table_case.h"

namespace tutti {
namespace {

using namespace table_case;  // NOLINT(google-build-using-namespace)
using Records = std::vector<std::vector<std::string>>;

/// What a reader finds; a bad record is {"bad", place, what}.
Records records_of(const std::string& text, char delimiter = ',') {
  CsvReader reader(text, delimiter);
  Records records;
  std::string scratch;
  for (;;) {
    const auto next = reader.next();
    if (next == CsvReader::Next::kEnd) return records;
    records.emplace_back();
    if (next == CsvReader::Next::kBad) {
      records.back() = {"bad", reader.fault_place(), reader.fault()};
      continue;
    }
    for (const CsvField& field : reader.fields()) records.back().emplace_back(field.value(scratch));
  }
}

TEST(Csv, ValuesAreSplitAtDelimitersAndLineEndsOfBothKinds) {
  EXPECT_EQ(records_of("a,b\r\nc,d\n\n\r\ne,\n"), (Records{{"a", "b"}, {"c", "d"}, {"e", ""}}));
  EXPECT_EQ(records_of("a\tb,c\n", '\t'), (Records{{"a", "b,c"}}));
  EXPECT_EQ(records_of("a,"), (Records{{"a", ""}}));
  EXPECT_EQ(records_of("a,b\r"), (Records{{"a", "b"}}));
  EXPECT_EQ(records_of("\"a\"\r"), (Records{{"a"}}));
  EXPECT_EQ(records_of(""), Records{});
  EXPECT_EQ(records_of("\n\n"), Records{});
}

TEST(Csv, QuotedValuesHaveDelimitersLineEndsAndQuotesInThem) {
  EXPECT_EQ(records_of("\"a,b\",\"c\"\"d\"\"\",\"\"\n\"e\r\nf\",g,\"\"\"\"\n"),
            (Records{{"a,b", "c\"d\"", ""}, {"e\r\nf", "g", "\""}}));
}

TEST(Csv, AByteOrderMarkIsPassedOver) {
  EXPECT_EQ(records_of("\xef\xbb\xbf\"a\",b"), (Records{{"a", "b"}}));
}

TEST(Csv, LinesAreCountedThroughQuotedLineEndsAndEmptyLines) {
  CsvReader reader("a\n\n\"b\n\n\"\nc\n", ',');
  std::vector<int64_t> lines;
  while (reader.next() == CsvReader::Next::kRecord) lines.push_back(reader.line());
  EXPECT_EQ(lines, (std::vector<int64_t>{1, 3, 6}));
}

TEST(Csv, ABadRecordIsNamedByLineAndCharacterAndTheNextLineIsRead) {
  EXPECT_EQ(
      records_of("a,b\nc,\"d\ne,f\ng,h\n"),
      (Records{{"a", "b"}, {"bad", "2:3", "the quote is not closed"}, {"e", "f"}, {"g", "h"}}));
  EXPECT_EQ(records_of("a,\"b\"c\nd,e"),
            (Records{{"bad", "1:6", "text after a closing quote"}, {"d", "e"}}));
  EXPECT_EQ(records_of("x\na,\"b\n\"c\nd"), (Records{{"x"},
                                                     {"bad", "3:2", "text after a closing quote"},
                                                     {"bad", "3:1", "the quote is not closed"},
                                                     {"d"}}));
  EXPECT_EQ(
      records_of("5\" pipe,a\nb,c"),
      (Records{{"bad", "1:2", "a quote inside a value that does not begin with one"}, {"b", "c"}}));
}

const std::vector<std::string> kPeople = {"age: number", "city: category hash=8",
                                          "colour: one-hot red|green", "rich: target no|yes"};

Table people(const std::string& text, DataReport& report, const DataConfig& config = plain()) {
  return parse_csv(text, "people.csv", config, columns_of(kPeople), report);
}

TEST(CsvTable, ColumnsAreFoundByNameInAnyOrder) {
  DataReport report;
  const Table table = people(
      "rich,id, age ,colour,city\nyes,7, 30.5 ,green,Rome\nno,8,+2e1,red,\"Oslo\"\n", report);
  EXPECT_EQ(table.records, 2);
  EXPECT_EQ(table.numbers, (std::vector<float>{30.5, 20}));
  EXPECT_EQ(table.targets, (std::vector<float>{1, 0}));
  ASSERT_EQ(table.ids.size(), 4u);
  EXPECT_EQ(table.ids[1], 1);
  EXPECT_EQ(table.ids[3], 0);
  EXPECT_NE(table.ids[0], table.ids[2]);
  EXPECT_EQ(report.skipped, 0);
}

TEST(CsvTable, AHashedCategoryHasOneIdForEver) {
  // FNV-1a with a final mix, modulo 8: ids are part of the job's meaning and must never change.
  DataReport report;
  EXPECT_EQ(people("age,city,colour,rich\n1,Rome,red,no\n", report).ids[0], kRomeBelow8);
}

TEST(CsvTable, WithoutAHeaderColumnsAreNumbers) {
  DataConfig config = plain();
  config.header = false;
  config.delimiter = ";";
  DataReport report;
  const Table table = parse_csv("1;2;0\n3;4;1\n", "x.csv", config,
                                columns_of({"2: number", "3: target classes=2"}), report);
  EXPECT_EQ(table.numbers, (std::vector<float>{2, 4}));
  EXPECT_EQ(table.targets, (std::vector<float>{0, 1}));
  EXPECT_EQ(fault([&] { parse_csv("1;2\n", "x.csv", config, columns_of({"3: number"}), report); }),
            "x.csv: there is no column \"3\"; did you mean \"1\"?");
}

TEST(CsvTable, TheEndingSaysWhatDelimits) {
  DataReport report;
  for (const char* name : {"x.tsv", "x.tsv.gz"}) {
    EXPECT_EQ(
        parse_csv("a\tb\n1\t2\n", name, plain(), columns_of({"b: number"}), report).numbers[0], 2)
        << name;
  }
  DataConfig config = plain();
  config.delimiter = ",,";
  EXPECT_EQ(fault([&] { parse_csv("a\n1\n", "x.csv", config, columns_of({"a: number"}), report); }),
            "data.delimiter = \",,\": one character, not a quote or a line end");
}

TEST(CsvTable, NumbersNearZeroAreZeroAndMinusZeroIsZero) {
  DataReport report;
  const Table table =
      parse_csv("a\n1e-60\n1e-400\n-0\n", "x.csv", plain(), columns_of({"a: number"}), report);
  for (const float value : table.numbers) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0u);
}

const std::string kHeader = "age,city,colour,rich\n", kGood = "30,Rome,red,yes\n";

TEST(CsvTable, EveryFaultOfARecordNamesFileLineColumnAndWhat) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"abc,Rome,red,yes", "3:1 (age): \"abc\" is not a number"},
      {"3 4,Rome,red,yes", "3:1 (age): \"3 4\" is not a number"},
      {"0x10,Rome,red,yes", "3:1 (age): \"0x10\" is not a number"},
      {"+-3,Rome,red,yes", "3:1 (age): \"+-3\" is not a number"},
      {"nan,Rome,red,yes", "3:1 (age): \"nan\" is not a finite number"},
      {"-inf,Rome,red,yes", "3:1 (age): \"-inf\" is not a finite number"},
      {"1e39,Rome,red,yes", "3:1 (age): \"1e39\" is out of a float's range"},
      {"1e400,Rome,red,yes", "3:1 (age): \"1e400\" is out of a float's range"},
      {",Rome,red,yes", "3:1 (age): the value is missing"},
      {"\" \",Rome,red,yes", "3:1 (age): the value is missing"},
      {"30,,red,yes", "3:2 (city): the value is missing"},
      {"30,Rome,rde,yes", "3:3 (colour): \"rde\" is none of its 2 values; did you mean \"red\"?"},
      {"30,Rome,red,maybe", "3:4 (rich): \"maybe\" is none of no, yes"},
      {"30,Rome,red,", "3:4 (rich): the value is missing"},
      {"30,Rome,red", "3:4: 3 columns, not 4"},
      {"30,Rome,red,yes,7", "3:5: 5 columns, not 4"},
      {"30,\"Rome,red,yes", "3:4: the quote is not closed"},
      {"30,\"Rome\"x,red,yes", "3:10: text after a closing quote"},
      {"30,Ro\"me,red,yes", "3:6: a quote inside a value that does not begin with one"},
      {std::string("a\0b,Rome,red,yes", 16), "3:1 (age): \"a\\x00b\" is not a number"},
      {std::string(100, 'x') + ",Rome,red,yes",
       "3:1 (age): \"" + std::string(40, 'x') + "...\" is not a number"},
  };
  for (const auto& [line, what] : cases) {
    DataReport report;
    const std::string text = kHeader + kGood + line + "\n";
    EXPECT_EQ(fault([&] { people(text, report); }), "people.csv:" + what) << line;
    DataConfig skip = plain();
    skip.bad = BadRecord::kSkip;
    const Table table = people(text + kGood, report, skip);
    EXPECT_EQ(table.records, 2) << line;
    EXPECT_EQ(report.skipped, 1) << line;
    EXPECT_EQ(report.faults, (std::vector<std::string>{"people.csv:" + what})) << line;
  }
}

TEST(CsvTable, AClassByNumberIsAWholeNumberBelowTheirCount) {
  DataReport report;
  const auto parse = [&](const std::string& value) {
    return parse_csv("c\n" + value + "\n", "x.csv", plain(), columns_of({"c: target classes=10"}),
                     report)
        .targets[0];
  };
  EXPECT_EQ(parse("9"), 9);
  EXPECT_EQ(parse("3.0"), 3);
  for (const std::string value : {"10", "-1", "2.5", "nan", "cat", "1e300"}) {
    EXPECT_EQ(fault([&] { parse(value); }),
              "x.csv:2:1 (c): \"" + value + "\" is not a whole number below 10");
  }
}

TEST(CsvTable, FaultsOfTheFileFailHoweverBadRecordsAreTaken) {
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\n\n", "people.csv: the file has no line"},
      {"aeg,city,colour,rich\n", "people.csv: there is no column \"age\"; did you mean \"aeg\"?"},
      {"x,y\n", "people.csv: there is no column \"age\"; they are x, y"},
      {"age,city,colour,age,rich\n",
       "people.csv:1:4: the name \"age\" is already that of column 1"},
      {"age,\"city\n", "people.csv:1:5: the quote is not closed, in the names of the columns"},
  };
  for (const auto& [text, what] : cases) {
    DataReport report;
    EXPECT_EQ(fault([&] { people(text, report, skip); }), what);
  }
  DataReport report;
  // names that nobody can mean
  EXPECT_EQ(people("age,city,colour,rich,,\n30,Rome,red,yes,,\n", report).records, 1);
}

TEST(CsvTable, OnlyTheFirstTenFaultsAreKept) {
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  std::string text = kHeader;
  for (int i = 0; i < 25; ++i) text += "x,Rome,red,yes\n" + kGood;
  DataReport report;
  EXPECT_EQ(people(text, report, skip).records, 25);
  EXPECT_EQ(report.skipped, 25);
  EXPECT_EQ(report.faults.size(), 10u);
  EXPECT_EQ(report.faults[9], "people.csv:20:1 (age): \"x\" is not a number");
}

TEST(CsvTable, MutatedAndRandomFilesAreReadOrRefusedAndNothingElse) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  DataConfig skip = plain();
  skip.bad = BadRecord::kSkip;
  std::string whole = kHeader;
  for (int i = 0; i < 8; ++i) whole += kGood + "7,\"A, \"\"B\"\"\nC\",green,no\r\n";
  for (uint64_t round = 0; round < 3000; ++round) {
    const std::string text = mutated(whole, seed, round);
    // A copy that ends where its memory ends: the address sanitizer sees a read past it.
    const std::vector<char> exact(text.begin(), text.end());
    DataReport report;
    try {
      const Table table = people({exact.data(), exact.size()}, report, skip);
      ASSERT_EQ(table.numbers.size(), static_cast<size_t>(table.records));
      ASSERT_EQ(table.ids.size(), 2 * static_cast<size_t>(table.records));
      for (const int32_t id : table.ids) ASSERT_TRUE(id >= 0 && id < 8);
      for (const float value : table.numbers) ASSERT_TRUE(std::isfinite(value));
    } catch (const Error& error) {
      ASSERT_TRUE(std::string(error.what()).starts_with("people.csv")) << error.what();
    }
  }
}

}  // namespace
}  // namespace tutti
