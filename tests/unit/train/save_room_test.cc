#include "train/save_room.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(SaveRoom, IsThereWhereEveryHostHasItForAllOfItsRanks) {
  EXPECT_EQ(lacks_room(std::vector<RankNeeds>{{0, 8 * kGiB, 8 * kGiB}}), "");
  EXPECT_EQ(lacks_room(std::vector<RankNeeds>{
                {0, 8 * kGiB, 4 * kGiB}, {0, 8 * kGiB, 4 * kGiB}, {1, 3 * kGiB, 3 * kGiB}}),
            "");
}

TEST(SaveRoom, IsMissingWhereTheRanksOfAHostNeedMoreThanWasFree) {
  const std::string said = "with copies of the state its ranks would need 8 GiB, and ";
  EXPECT_EQ(lacks_room(std::vector<RankNeeds>{{0, 7 * kGiB, 4 * kGiB}, {0, 7 * kGiB, 4 * kGiB}}),
            said + "7 GiB are free");
  // One that looked later saw what the other had taken already.
  EXPECT_EQ(lacks_room(std::vector<RankNeeds>{
                {1, 99 * kGiB, 4 * kGiB}, {0, 9 * kGiB, 4 * kGiB}, {0, 5 * kGiB, 4 * kGiB}}),
            said + "5 GiB are free");
}

}  // namespace
}  // namespace tutti
