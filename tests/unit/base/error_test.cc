#include "base/error.h"

#include <gtest/gtest.h>

namespace tutti {

TEST(Error, ConfigErrorListsEveryFaultOnItsLine) {
  ConfigError error({"a.toml:1: first", "a.toml:2: second"});
  EXPECT_STREQ(error.what(), "a.toml:1: first\na.toml:2: second");
}

TEST(Error, CommErrorNamesRankOperationPeerSequenceAndTime) {
  CommError error({1, "reduce parcel 3", 2, 7, std::chrono::milliseconds(1500), "timed out"});
  EXPECT_STREQ(error.what(), "rank 1: reduce parcel 3 #7 with rank 2: timed out (waited 1.500 s)");
}

}  // namespace tutti
