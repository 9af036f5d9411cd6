#include <gtest/gtest.h>

#include "base/error.h"
#include "model/adapt/adaptor.h"
#include "model/core/segment.h"
#include "model/core/wiring.h"
#include "model/loss/loss.h"

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
  model.blocks.push_back(
      adapt("embed", {{"table", {5, 3}, {}, {}}, {"scale", {1}, {}, {}}}, kNothing, {tokens}, {x}));
  model.blocks.push_back(adapt("middle",
                               {{"table", {5, 3}, {}, "embed/table"}, {"bias", {33}, {}, {}}},
                               kNothing, {x}, {x}));
  model.blocks.push_back(
      adapt("head", {{"table", {5, 3}, {}, "embed/table"}}, kNothing, {x}, {logits}));
  model.blocks.back().segments.push_back(cross_entropy_segment(logits, targets));
  return model;
}

// Two columns: rows are gathered, partial sums scattered, and x travels with them.
Model column_model() {
  Model model;
  model.columns = 2;
  model.data = {{"tokens", {4}, at::kLong}};
  const Border x{"x", {2, 3}, at::kBFloat16}, loss{"loss", {2}, at::kDouble};
  for (int c = 0; c < 2; ++c) {
    const std::string slice = ".slice" + std::to_string(c);
    model.blocks.push_back(
        adapt("embed" + slice, {{"scale", {3}, {}, c == 0 ? "" : "embed.slice0/scale"}}, kNothing,
              {model.data[0]}, {{"rows", {2, 3}, at::kBFloat16, Exchange::kGather}, x}));
  }
  for (int c = 0; c < 2; ++c) {
    const std::string slice = ".slice" + std::to_string(c);
    model.blocks.push_back(adapt("layer" + slice, {}, kNothing,
                                 {x, {"rows", {4, 3}, at::kBFloat16}},
                                 {{"sum", {4, 3}, at::kFloat, Exchange::kScatter},
                                  {"x", {2, 3}, at::kBFloat16, Exchange::kNone, "x"}}));
    Block end = adapt("end" + slice, {}, kNothing, {{"sum", {2, 3}, at::kBFloat16}, x}, {loss});
    model.blocks.back().segments.push_back(std::move(end.segments[0]));
  }
  return model;
}

// The same with one segment's borders changed in both columns, or in one alone.
Model changed(
    size_t layer, size_t segment, bool both,
    const std::function<void(std::vector<Border>& in, std::vector<Border>& out)>& change) {
  Model model = column_model();
  for (size_t c = 0; c < (both ? 2u : 1u); ++c) {
    auto& place = model.blocks[2 * layer + 1 - c].segments[segment];
    AutogradSegment::Spec spec;
    spec.name = place->name();
    spec.inputs = place->inputs();
    spec.outputs = place->outputs();
    spec.function = kNothing;
    change(spec.inputs, spec.outputs);
    place = std::make_unique<AutogradSegment>(std::move(spec));
  }
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
  EXPECT_EQ(shape.blocks[0].parameters[0].extra_gradients,
            (std::vector<int64_t>{2 * kAlign, 3 * kAlign}));
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
  EXPECT_NE(fault(user).find("parameter middle.table is a buffer shared with embed/table"),
            std::string::npos);
  owner.blocks[0].parameters[0].role = Role::kSumBuffer;
  EXPECT_NE(fault(owner).find("buffers cannot be shared"), std::string::npos);
}

TEST(Describe, AllFaultsOfAModelAreListedAtOnce) {
  Model model = tied_model();
  model.blocks[1].parameters[0].shared_with = "head/table";
  model.blocks[2].parameters[0].dims = {3, 5};
  model.blocks[2].name = "middle";
  const std::string text = fault(model);
  EXPECT_NE(text.find("middle.table is shared with head/table, which no earlier block owns"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("middle.table is [3, 5], but embed/table is [5, 3]"), std::string::npos)
      << text;
  EXPECT_NE(text.find("two blocks are named middle"), std::string::npos) << text;
}

TEST(Describe, BordersThatDoNotMeetAreNamed) {
  Model model = tied_model();
  model.blocks.erase(model.blocks.begin());
  EXPECT_NE(fault(model).find("block middle, segment middle wants x, which neither"),
            std::string::npos)
      << fault(model);
  model = tied_model();
  model.data[0].dims = {5};
  EXPECT_NE(fault(model).find("wants tokens Long [4], but gets tokens Long [5]"), std::string::npos)
      << fault(model);
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

TEST(Describe, SaysWhatColumnsReadAndWriteBack) {
  const ModelShape shape = describe(column_model());
  EXPECT_EQ(shape.columns, 2);
  EXPECT_EQ(shape.layers(), 2);
  EXPECT_EQ(shape.data_bytes, std::vector<int64_t>{32});
  EXPECT_EQ(shape.blocks[3].layer, 1);
  EXPECT_EQ(shape.blocks[3].column, 1);
  EXPECT_EQ(shape.blocks[1].shares, (std::vector<Share>{{0, 0, 0}}));
  EXPECT_TRUE(shape.blocks[0].shares.empty());

  const OutputShape& rows = shape.blocks[0].segments[0].outputs[0];
  EXPECT_EQ(rows.exchange, Exchange::kGather);
  EXPECT_EQ(rows.bytes, 12);
  EXPECT_EQ(rows.read_bytes, 24);
  const SegmentShape& layer = shape.blocks[3].segments[0];
  EXPECT_EQ(layer.inputs[1].index, 0) << "output 0 of the column's own block before";
  EXPECT_TRUE(layer.inputs[1].wanted);
  EXPECT_EQ(layer.inputs[1].grad_bytes, 48) << "a float32 partial sum of all rows";
  EXPECT_EQ(layer.inputs[0].grad_bytes, 12);
  EXPECT_EQ(layer.outputs[0].bytes, 48);
  EXPECT_EQ(layer.outputs[0].element_bytes, 4);
  EXPECT_EQ(layer.outputs[0].read_bytes, 12) << "rounded to what reads it";
  EXPECT_EQ(layer.outputs[0].read_element_bytes, 2);
  EXPECT_EQ(layer.outputs[1].same_as, 0);
  EXPECT_EQ(layer.border_bytes, 48) << "what is passed on takes no memory";
  EXPECT_EQ(shape.blocks[3].segments[1].inputs[0].grad_bytes, 12);
}

TEST(Describe, RefusesColumnsThatDiffer) {
  Model model = column_model();
  model.blocks.pop_back();
  EXPECT_NE(fault(model).find("3 blocks do not make layers of 2 columns"), std::string::npos)
      << fault(model);
  model = column_model();
  model.blocks[3].segments.pop_back();
  EXPECT_NE(
      fault(model).find("block layer.slice1 has 1 segments, but layer.slice0 next to it has 2"),
      std::string::npos)
      << fault(model);
  model = changed(1, 0, false, [](auto&, auto& out) { out[0].dims = {12}; });
  EXPECT_NE(fault(model).find(
                "block layer.slice1, segment layer.slice1 has other borders than layer.slice0"),
            std::string::npos)
      << fault(model);
}

TEST(Describe, RefusesBordersThatAnExchangeDoesNotMake) {
  Model model = changed(1, 0, true, [](auto& in, auto&) { in[1].dims = {2, 3}; });
  EXPECT_NE(
      fault(model).find(
          "wants rows BFloat16 [2, 3], but gets rows BFloat16 [2, 3] gathered from 2 columns"),
      std::string::npos)
      << fault(model);
  model = changed(1, 1, true, [](auto& in, auto&) { in[0].dims = {4, 3}; });
  EXPECT_NE(fault(model).find("summed and scattered over 2 columns"), std::string::npos)
      << fault(model);
  model = changed(1, 0, true, [](auto&, auto& out) { out[0].type = at::kBFloat16; });
  EXPECT_NE(fault(model).find("it must be float32 and cut evenly"), std::string::npos)
      << fault(model);
}

TEST(Describe, RefusesToPassOnWhatCannotBe) {
  const auto text =
      [](const std::function<void(std::vector<Border>&, std::vector<Border>&)>& change) {
        return fault(changed(1, 0, true, change));
      };
  const std::string where = "block layer.slice0, segment layer.slice0 passes ";
  EXPECT_NE(text([](auto&, auto& out) {
              out[1].same_as = "y";
            }).find(where + "y on as x, but does not read it"),
            std::string::npos);
  EXPECT_NE(text([](auto&, auto& out) {
              out[1].dims = {4, 3};
              out[1].same_as = "rows";
            }).find(where + "rows on as x, but it is gathered"),
            std::string::npos);
  EXPECT_NE(text([](auto&, auto& out) {
              out[1].dims = {6};
            }).find("but reads x BFloat16 [2, 3] and declares x"),
            std::string::npos);
  EXPECT_NE(text([](auto&, auto& out) {
              out[1].exchange = Exchange::kGather;
            }).find("through an exchange"),
            std::string::npos);
  EXPECT_NE(text([](auto&, auto& out) {
              out[1].name = "other";
            }).find("which the next segment does not read"),
            std::string::npos);
  EXPECT_NE(text([](auto&, auto& out) {
              out.push_back({"z", {2, 3}, at::kBFloat16, Exchange::kNone, "x"});
            }).find("passes x on as z and as x"),
            std::string::npos);
}

}  // namespace tutti
