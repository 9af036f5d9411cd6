#include "grid/layout_name.h"

#include <gtest/gtest.h>

namespace tutti {

TEST(LayoutName, SaysWhatIsNotTheDefaultInThreeForms) {
  LayoutConfig layout = parse_job("", "job", {}).layout;
  layout.ranks = 4, layout.zero = 0, layout.fold = FoldKind::kLocal;
  EXPECT_EQ(layout_name(layout), "data 4 x tensor 1 x pipeline 1");
  EXPECT_EQ(layout_suffix(layout), "");
  EXPECT_EQ(layout_word(layout), "4x1x1");

  layout.ranks = 16, layout.tensor = 2, layout.pipeline = 2, layout.schedule = "zbv";
  layout.in_flight = 3, layout.zero = 3, layout.shards = 2, layout.depth = 0;
  layout.recompute = Recompute::kFull, layout.offload = Offload::kOptimizer,
  layout.fold = FoldKind::kOwner;
  const std::string said =
      "data 4 x tensor 2 x pipeline 2, zbv, 3 in flight, zero 3 over 2, depth 0, recompute full, "
      "offload optimizer";
  EXPECT_EQ(layout_name(layout), said + ", fold owner");
  EXPECT_EQ(layout_suffix(layout), ", " + said);
  EXPECT_EQ(layout_word(layout), "4x2x2,zbv/3,zero3/2,depth0,full,offload-optimizer");
}

TEST(LayoutName, SaysHowManyChunksAStageHasIfTheyAreMoreThanTheDefault) {
  LayoutConfig layout = parse_job("", "job", {}).layout;
  layout.ranks = layout.pipeline = 2, layout.schedule = "interleaved", layout.zero = 0;
  EXPECT_EQ(layout_word(layout), "1x1x2,interleaved");
  layout.chunks = 4;
  EXPECT_EQ(layout_name(layout), "data 1 x tensor 1 x pipeline 2, interleaved, 4 chunks");
  EXPECT_EQ(layout_word(layout), "1x1x2,interleaved/4");
}

TEST(LayoutName, LeavesOutKeysThatSayNothingToTheLayout) {
  LayoutConfig layout = parse_job("", "job", {}).layout;
  layout.ranks = 2, layout.zero = 1, layout.depth = 4, layout.in_flight = 3;
  EXPECT_EQ(layout_word(layout), "2x1x1,zero1");
}

}  // namespace tutti
