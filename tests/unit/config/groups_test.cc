#include <gtest/gtest.h>

#include "config/check/parameter_groups.h"

namespace tutti {
namespace {

std::vector<std::string> faults_of(const std::vector<std::string>& texts) {
  std::vector<std::string> faults;
  parse_groups(texts, faults);
  return faults;
}

TEST(Groups, OptionsAreReadAndTheRestKeepsItsDefault) {
  std::vector<std::string> faults;
  const auto groups =
      parse_groups({"*.bias weight_decay=0", "  embed.*\tlr=0.1   weight_decay=1e-2 ",
                    "stem.* frozen", "head.weight"},
                   faults);
  EXPECT_TRUE(faults.empty());
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].pattern, "*.bias");
  EXPECT_EQ(groups[0].lr, 1);
  EXPECT_EQ(groups[0].weight_decay, 0);
  EXPECT_FALSE(groups[0].frozen);
  EXPECT_EQ(groups[1].pattern, "embed.*");
  EXPECT_EQ(groups[1].lr, 0.1);
  EXPECT_EQ(groups[1].weight_decay, 0.01);
  EXPECT_EQ(groups[2].pattern, "stem.*");
  EXPECT_TRUE(groups[2].frozen);
  EXPECT_FALSE(groups[2].weight_decay.has_value());
  EXPECT_EQ(groups[3].pattern, "head.weight");  // no option: an exception from the groups below it
}

TEST(Groups, EveryFaultOfEveryTextIsListedAtOnce) {
  const auto faults = faults_of(
      {"", "weight_decay=0", "frozen", "*.bias weight_decai=0 frozzen lr=fast", "* lr=-1", "* lr",
       "* weight_decay=1e", "* frozen=1", "* lr=inf", "ok.* lr=2", "* colour=red"});
  const std::vector<std::string> expected = {
      "train.groups: \"\": no pattern; write \"PATTERN OPTION...\", such as \"*.bias "
      "weight_decay=0\"",
      "train.groups: \"weight_decay=0\": no pattern; write \"PATTERN OPTION...\", such as \"*.bias "
      "weight_decay=0\"",
      "train.groups: \"frozen\": no pattern; write \"PATTERN OPTION...\", such as \"*.bias "
      "weight_decay=0\"",
      "train.groups: \"*.bias weight_decai=0 frozzen lr=fast\": \"weight_decai\" is no option; did "
      "you mean "
      "weight_decay?",
      "train.groups: \"*.bias weight_decai=0 frozzen lr=fast\": \"frozzen\" is no option; did you "
      "mean frozen?",
      "train.groups: \"*.bias weight_decai=0 frozzen lr=fast\": \"lr=fast\": not a number at least "
      "0",
      "train.groups: \"* lr=-1\": \"lr=-1\": not a number at least 0",
      "train.groups: \"* lr\": lr has no value; write lr=NUMBER",
      "train.groups: \"* weight_decay=1e\": \"weight_decay=1e\": not a number at least 0",
      "train.groups: \"* frozen=1\": \"frozen=1\": frozen has no value",
      "train.groups: \"* lr=inf\": \"lr=inf\": not a number at least 0",
      "train.groups: \"* colour=red\": \"colour\" is no option; known are lr=, weight_decay= and "
      "frozen",
  };
  EXPECT_EQ(faults, expected);
}

TEST(Groups, AFaultyTextYieldsNoGroupAndTheOthersStay) {
  std::vector<std::string> faults = {"before"};
  const auto groups = parse_groups({"a lr=x", "b frozen"}, faults);
  EXPECT_EQ(faults.size(), 2u);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].pattern, "b");
}

TEST(Groups, TheFirstPatternThatFitsIsTheParametersGroup) {
  std::vector<std::string> faults;
  const auto groups = parse_groups({"head.bias", "*.bias weight_decay=0", "head.* lr=10"}, faults);
  EXPECT_EQ(group_of(groups, "head.bias"), &groups[0]);
  EXPECT_EQ(group_of(groups, "stem.bias"), &groups[1]);
  EXPECT_EQ(group_of(groups, "head.weight"), &groups[2]);
  EXPECT_EQ(group_of(groups, "stem.weight"), nullptr);
}

TEST(Groups, StarsAndQuestionMarksStandForWhatTheySay) {
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("*", "block0.attention.weight"));
  EXPECT_TRUE(fits("*.bias", "block0.norm.bias"));
  EXPECT_FALSE(fits("*.bias", "block0.bias.scale"));
  EXPECT_FALSE(fits("*.bias", "bias"));
  EXPECT_TRUE(fits("block?.weight", "block3.weight"));
  EXPECT_FALSE(fits("block?.weight", "block12.weight"));
  EXPECT_FALSE(fits("block?.weight", "block.weight"));
  EXPECT_TRUE(fits("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(fits("a*b*c", "abc"));
  EXPECT_FALSE(fits("a*b*c", "acb"));
  EXPECT_TRUE(fits("**x**", "yxy"));
  EXPECT_TRUE(fits("", ""));
  EXPECT_FALSE(fits("", "a"));
  EXPECT_FALSE(fits("weight", "weights"));
  EXPECT_FALSE(fits("a.b", "axb"));  // a dot is itself
}

TEST(Groups, APatternOfManyStarsOnALongNameEnds) {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "a*";
  EXPECT_FALSE(
      fits(pattern + "b", std::string(4000, 'a')));  // trying every split would outlive the machine
}

}  // namespace
}  // namespace tutti
