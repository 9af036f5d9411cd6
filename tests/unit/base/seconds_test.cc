#include "base/text/seconds.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Seconds, AreSaidInTheUnitThatSuits) {
  EXPECT_EQ(seconds_text(0), "0 us");
  EXPECT_EQ(seconds_text(12.54e-6), "12.5 us");
  EXPECT_EQ(seconds_text(0.34021), "340.2 ms");
  EXPECT_EQ(seconds_text(1), "1 s");
  EXPECT_EQ(seconds_text(12345.6), "1.235e+04 s");
}

}  // namespace
}  // namespace tutti
