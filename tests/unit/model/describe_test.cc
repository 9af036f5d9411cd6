#include <gtest/gtest.h>

#include "base/error.h"
#include "model/adaptor.h"
#include "model/loss.h"
#include "model/segment.h"
#include "model/wiring.h"

namespace tutti {

namespace {

const TensorFunction kNothing = [](const Pass&, Tensors, Tensors in) {
  return std::vector<at::Tensor>(in.begin(), in.end());
};

// Two users of the embedding's table.
Model tied_model() {
  const Border tokens{"tokens", {4}, at::kLong}, x{"x", {4, 3}}, logits{"logits", {4, 5}},
      targets{"targets", {4}, at::kLong};
  Model model;
  model.data = {tokens, targets};
  model.blocks.push_back(adapt("embed", {{"table", {5, 3}, {}, {}}, {"scale", {1}, {}, {}}}, kNothing, {tokens}, {x}));
  model.blocks.push_back(
      adapt("middle", {{"table", {5, 3}, {}, "embed/table"}, {"bias", {33}, {}, {}}}, kNothing, {x}, {x}));
  model.blocks.push_back(adapt("head", {{"table", {5, 3}, {}, "embed/table"}}, kNothing, {x}, {logits}));
  model.blocks.back().segments.push_back(cross_entropy_segment(logits, targets));
  return model;
}

std::string fault(const Model& model) {
  try {
    describe(model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Describe, ParametersGetFullNamesAndAlignedOffsets) {
  const ModelShape shape = describe(tied_model());
  ASSERT_EQ(shape.blocks.size(), 3u);
  const BlockShape& embed = shape.blocks[0];
  EXPECT_EQ(embed.name, "embed");
  ASSERT_EQ(embed.parameters.size(), 2u);
  EXPECT_EQ(embed.parameters[0].name, "embed.table");
  EXPECT_EQ(embed.parameters[0].dims, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(embed.parameters[0].offset, 0);
  EXPECT_EQ(embed.parameters[0].size, 15);
  EXPECT_EQ(embed.parameters[1].name, "embed.scale");
  EXPECT_EQ(embed.parameters[1].offset, kAlign);
  EXPECT_EQ(embed.parameters[1].size, 1);
  EXPECT_EQ(embed.unit_size, 2 * kAlign);
}

TEST(Describe, EveryUserOfASharedParameterHasAGradientBehindTheOwnersUnit) {
  const ModelShape shape = describe(tied_model());
  EXPECT_EQ(shape.blocks[0].parameters[0].extra_gradients, (std::vector<int64_t>{2 * kAlign, 3 * kAlign}));
  EXPECT_EQ(shape.blocks[0].gradient_size, 4 * kAlign);
  ASSERT_EQ(shape.blocks[1].parameters.size(), 1u) << "a user does not own the parameter";
  EXPECT_EQ(shape.blocks[1].parameters[0].name, "middle.bias");
  EXPECT_EQ(shape.blocks[1].unit_size, kAlign);
  EXPECT_EQ(shape.blocks[1].gradient_size, kAlign);
  EXPECT_EQ(shape.blocks[2].unit_size, 0);
  EXPECT_TRUE(shape.blocks[0].writes_units.empty());
  EXPECT_EQ(shape.blocks[1].writes_units, std::vector<int>{0});
  EXPECT_EQ(shape.blocks[2].writes_units, std::vector<int>{0});
}

TEST(Describe, SegmentsCountTheBytesOfTheirOutputs) {
  const ModelShape shape = describe(tied_model());
  EXPECT_EQ(shape.blocks[0].segments[0].border_bytes, 4 * 3 * 4);
  ASSERT_EQ(shape.blocks[2].segments.size(), 2u);
  EXPECT_EQ(shape.blocks[2].segments[0].border_bytes, 4 * 5 * 4);
  EXPECT_EQ(shape.blocks[2].segments[1].border_bytes, 16);
}

TEST(Describe, CarriesTheRolesAndRefusesSharedBuffers) {
  Model model = tied_model();
  model.blocks[1].parameters[1].role = Role::kMeanBuffer;
  const ModelShape shape = describe(model);
  EXPECT_EQ(shape.blocks[0].parameters[0].role, Role::kTrained);
  EXPECT_EQ(shape.blocks[1].parameters[0].role, Role::kMeanBuffer);
  Model user = tied_model(), owner = tied_model();
  user.blocks[1].parameters[0].role = Role::kSumBuffer;
  EXPECT_NE(fault(user).find("parameter middle.table is a buffer shared with embed/table"), std::string::npos);
  owner.blocks[0].parameters[0].role = Role::kSumBuffer;
  EXPECT_NE(fault(owner).find("buffers cannot be shared"), std::string::npos);
}

TEST(Describe, AllFaultsOfAModelAreListedAtOnce) {
  Model model = tied_model();
  model.blocks[1].parameters[0].shared_with = "head/table";
  model.blocks[2].parameters[0].dims = {3, 5};
  model.blocks[2].name = "middle";
  const std::string text = fault(model);
  EXPECT_NE(text.find("middle.table is shared with head/table, which no earlier block owns"), std::string::npos)
      << text;
  EXPECT_NE(text.find("middle.table is [3, 5], but embed/table is [5, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("two blocks are named middle"), std::string::npos) << text;
}

TEST(Describe, BordersThatDoNotMeetAreNamed) {
  Model model = tied_model();
  model.blocks.erase(model.blocks.begin());
  EXPECT_NE(fault(model).find("block middle, segment middle wants x, which neither"), std::string::npos)
      << fault(model);
  model = tied_model();
  model.data[0].dims = {5};
  EXPECT_NE(fault(model).find("wants tokens Long [4], but gets tokens Long [5]"), std::string::npos) << fault(model);
  model = tied_model();
  model.blocks.back().segments.pop_back();
  EXPECT_NE(fault(model).find("must end with loss Double [2]"), std::string::npos) << fault(model);
}

TEST(Wiring, AnInputPrefersTheSegmentBeforeToTheData) {
  Model model = tied_model();
  model.data.push_back({"x", {4, 3}});
  const auto segments = wire(model);
  EXPECT_FALSE(segments[1].sources[0].data);
  EXPECT_TRUE(segments[1].wanted[0]);
  EXPECT_TRUE(segments.back().sources[1].data) << "targets";
  EXPECT_FALSE(segments.back().wanted[1]);
}

}  // namespace tutti
