#include "base/text/lists.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Lists, ReadAsASentenceDoes) {
  EXPECT_EQ(listed({}, "or"), "");
  EXPECT_EQ(listed({"a"}, "or"), "a");
  EXPECT_EQ(listed({"a", "b"}, "or"), "a or b");
  EXPECT_EQ(listed({"a", "b", "c"}, "and"), "a, b and c");
}

TEST(Lists, TellHowManyMoreThereAre) {
  EXPECT_EQ(first_few({"a", "b"}, 2), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(first_few({"a", "b", "c", "d"}, 2), (std::vector<std::string>{"a", "b", "and 2 more"}));
  EXPECT_EQ(first_few({}, 2), std::vector<std::string>{});
}

}  // namespace
}  // namespace tutti
