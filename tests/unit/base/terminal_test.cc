#include "base/text/terminal.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Printable, LeavesTextLineEndsAndTabsAsTheyAre) {
  const std::string text = "In the beginning,\tGod\ncr\u00e9ated \u2014 \U0001F600 \u4e2d\n";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[31mred\x07\x0e\rb"), "a\\x1b[31mred\\x07\\x0e\\x0db");
  EXPECT_EQ(printable(std::string("\0\x08\x7f", 3)), "\\x00\\x08\\x7f");
  for (int control = 0; control < 0xa0; ++control) {
    const bool spelt_in_two = control >= 0x80;
    std::string text = spelt_in_two ? std::string{'\xc2', static_cast<char>(control)}
                                    : std::string(1, static_cast<char>(control));
    const bool harmless = control == '\n' || control == '\t' || (control >= ' ' && control < 0x7f);
    EXPECT_EQ(printable(text) == text, harmless) << control;
  }
}

TEST(Printable, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");                                    // CSI in one byte
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");           // ESC, longer than it need be
  EXPECT_EQ(printable("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");  // longer still
  EXPECT_EQ(printable("a\xe4"
                      "b\xff"),
            "a\\xe4"
            "b\\xff");                             // Latin-1
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80");  // cut off
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
}

}  // namespace
}  // namespace tutti
