#include <gtest/gtest.h>

#include "config/check/table_columns.h"

namespace tutti {
namespace {

using As = Column::Role;
using Texts = std::vector<std::string>;

Column one(const std::string& text) {
  Texts faults;
  const auto columns = parse_columns({text}, faults);
  EXPECT_EQ(faults, Texts{});
  return columns.empty() ? Column{} : columns[0];
}

Texts faults_of(const Texts& texts) {
  Texts faults;
  parse_columns(texts, faults);
  return faults;
}

TEST(Columns, ANumberMayBeScaledAndLogged) {
  const Column plain = one("age: number");
  EXPECT_EQ(plain.name, "age");
  EXPECT_EQ(plain.role, As::kNumber);
  EXPECT_EQ(plain.scale, ValueScale::kNone);
  EXPECT_FALSE(plain.log);
  const Column scaled = one("  body mass :number  log standardise ");
  EXPECT_EQ(scaled.name, "body mass");
  EXPECT_EQ(scaled.scale, ValueScale::kStandardise);
  EXPECT_TRUE(scaled.log);
  EXPECT_EQ(one("x: number min-max").scale, ValueScale::kMinMax);
}

TEST(Columns, ACategoryIsHashedNamedOrAWholeNumber) {
  const Column hashed = one("city: category hash=64");
  EXPECT_TRUE(hashed.hashed);
  EXPECT_EQ(hashed.size, 64);
  const Column named = one("colour: category red|dark green | blue");
  EXPECT_EQ(named.values, (Texts{"red", "dark green", "blue"}));
  EXPECT_EQ(named.size, 3);
  EXPECT_FALSE(named.hashed);
  const Column whole = one("month: category classes=12");
  EXPECT_EQ(whole.size, 12);
  EXPECT_TRUE(whole.values.empty());
  EXPECT_EQ(one("shape: one-hot round|square").role, As::kOneHot);
}

TEST(Columns, ATargetIsANumberOrAClass) {
  EXPECT_EQ(one("price: target").size, 0);
  EXPECT_EQ(one("animal: target cat|dog").values, (Texts{"cat", "dog"}));
  EXPECT_EQ(one("digit: target classes=10").size, 10);
}

TEST(Columns, ANameInQuotesMayHaveAColon) {
  EXPECT_EQ(one("'time: start': number").name, "time: start");
  EXPECT_EQ(one("' ': number").name, " ");
}

TEST(Columns, SizesAddUp) {
  Texts faults;
  const ColumnSizes sizes =
      sizes_of(parse_columns({"a: number", "b: one-hot x|y|z", "c: category hash=8", "d: weight",
                              "e: category p|q", "f: target classes=5"},
                             faults));
  EXPECT_EQ(faults, Texts{});
  EXPECT_EQ(sizes.numbers, 4);
  EXPECT_EQ(sizes.categories, (std::vector<int64_t>{8, 2}));
  EXPECT_EQ(sizes.classes, 5);
  EXPECT_EQ(sizes.targets, 1);
  EXPECT_EQ(sizes.weights, 1);
  EXPECT_EQ(sizes.texts, 0);
}

TEST(Columns, EveryFaultNamesItsTextAndTheNearestWord) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"age", "\"age\": expected \"name: role option...\""},
      {"age:", "\"age:\": expected \"name: role option...\""},
      {": number", "\": number\": the column has no name"},
      {"'age: number", "\"'age: number\": the quote of the name does not end"},
      {"age: nmuber", "\"age: nmuber\": unknown role \"nmuber\"; did you mean number?"},
      {"age: q",
       "\"age: q\": role \"q\" is none of number, category, one-hot, weight, target, text"},
      {"age: number standardize",
       "\"age: number standardize\": unknown option \"standardize\"; did you mean standardise?"},
      {"age: number min-max standardise",
       "\"age: number min-max standardise\": standardise and min-max exclude each other"},
      {"w: weight log", "\"w: weight log\": \"log\": this role has no options"},
      {"c: category", "\"c: category\": say its values: first|second|..., hash=N or classes=N"},
      {"c: one-hot", "\"c: one-hot\": say its values: first|second|..., classes=N"},
      {"c: one-hot hash=3", "\"c: one-hot hash=3\": option \"hash=\" is none of classes="},
      {"c: category hsah=3",
       "\"c: category hsah=3\": unknown option \"hsah=\"; did you mean hash=?"},
      {"c: category hash=0",
       "\"c: category hash=0\": hash=0 is not a whole number from 1 to 1048576"},
      {"c: category hash=1e3",
       "\"c: category hash=1e3\": hash=1e3 is not a whole number from 1 to 1048576"},
      {"c: target classes=1",
       "\"c: target classes=1\": classes=1 is not a whole number from 2 to 1048576"},
      {"c: target classes=2 classes=3",
       "\"c: target classes=2 classes=3\": its number of values is given twice"},
      {"c: target a||b", "\"c: target a||b\": one of its values is empty"},
      {"c: target a|b|a", "\"c: target a|b|a\": its value \"a\" is given twice"},
  };
  for (const auto& [text, fault] : cases)
    EXPECT_EQ(faults_of({text}), Texts{"data.columns: " + fault}) << text;
}

TEST(Columns, FaultsOfSeveralColumnsAreListedTogether) {
  const Texts faults =
      faults_of({"a: number", "a: weight", "b: weight", "c: target x|y", "d: target", "e: nubmer"});
  EXPECT_EQ(faults,
            (Texts{"data.columns: \"e: nubmer\": unknown role \"nubmer\"; did you mean number?",
                   "data.columns: column \"a\" is given twice",
                   "data.columns: more than one column is the weight",
                   "data.columns: a target of classes must be the only target"}));
  EXPECT_EQ(faults_of({"a: text", "b: number"}),
            Texts{"data.columns: a text must be the only column"});
  EXPECT_EQ(faults_of({"a: target", "b: target"}), Texts{});
}

}  // namespace
}  // namespace tutti
