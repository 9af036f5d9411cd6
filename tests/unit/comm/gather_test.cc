#include "comm/gather.h"

#include <gtest/gtest.h>

#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

TEST(GatherBytes, HandsEveryRankAllRanksBytesOfAnySizeInRankOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    over({"inproc", "inproc", true, false}, ranks, [&](TestRank& me) {
      Channel channel(me.transport, me.clock, {16, 31}, std::chrono::seconds(20));
      // some ranks have nothing, in one round nobody has
      const auto bytes = [](int rank, int round) {
        return std::string(static_cast<size_t>(round * ((rank + round) % 3) * 50),
                           static_cast<char>('a' + rank));
      };
      for (int round = 0; round < 6; ++round) {
        const auto all = gather_bytes(bytes(me.rank, round), channel);
        ASSERT_EQ(all.size(), static_cast<size_t>(ranks));
        for (int r = 0; r < ranks; ++r)
          EXPECT_EQ(all[static_cast<size_t>(r)], bytes(r, round)) << round;
      }
    });
}

}  // namespace
}  // namespace tutti
