// Derives sizes and parameters of the CNN from a job. It is the one place where a stage's strides
// and channels are decided.
#include "model/cnn/cnn_shape.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/core/init.h"

namespace tutti {

namespace {

NormKind norm_of(NormKind asked) {
  switch (asked) {
    case NormKind::kBatch:
    case NormKind::kAuto:
      return NormKind::kBatch;
    case NormKind::kGroup:
    case NormKind::kLayer:
      return NormKind::kGroup;
    case NormKind::kNone:
      return NormKind::kNone;
    case NormKind::kRms:
      break;
  }
  throw Error(fmt::format("model.norm = \"{}\": a cnn has batch, group, layer or none", asked));
}

// Adds a convolution and its norm. Names are close to torchvision's; the number is the layer's in
// its block.
void add_layer(Block& block, const CnnShape& shape, const ConvShape& conv,
               const std::string& number, const Init& init) {
  const std::vector<int64_t> each = {conv.out};
  block.parameters.push_back(
      {"conv" + number + ".weight", {conv.out, conv.in, conv.kernel, conv.kernel}, init, ""});
  if (shape.norm == NormKind::kNone) {
    block.parameters.push_back({"conv" + number + ".bias", each, {Init::Kind::kZeros, 1, {}}, ""});
    return;
  }
  const std::string norm = "norm" + number;
  block.parameters.push_back({norm + ".weight", each, {Init::Kind::kOnes, 1, {}}, ""});
  block.parameters.push_back({norm + ".bias", each, {Init::Kind::kZeros, 1, {}}, ""});
  if (shape.norm != NormKind::kBatch) return;
  block.parameters.push_back(
      {norm + ".running_mean", each, {Init::Kind::kZeros, 1, {}}, "", Role::kMeanBuffer});
  block.parameters.push_back(
      {norm + ".running_var", each, {Init::Kind::kOnes, 1, {}}, "", Role::kMeanBuffer});
}

}  // namespace

int64_t CnnShape::groups(int64_t channels) const {
  return layer ? 1 : std::gcd<int64_t>(channels * columns, 8) / columns;
}

CnnPlan cnn_plan(const Job& job) {
  const ModelConfig& c = job.model;
  if (c.image.size() != 3)
    throw Error(fmt::format("model.image of a cnn is channels, height and width: 3 numbers, not {}",
                            c.image.size()));
  if (c.channels.empty()) throw Error("model.channels of a cnn names no stage");
  CnnPlan plan{{job.train.micro_batch_size, c.classes, c.image, norm_of(c.norm),
                c.norm == NormKind::kLayer, c.activation, c.pool, c.dropout, c.residual},
               {c.image[1], c.image[2], c.image[0], c.channels[0], 3, 1},
               {}};

  // Follows an image through the network: the stem's pool halves it, and so does the first block of
  // every stage after the first.
  int64_t height = c.image[1] / 2, width = c.image[2] / 2, in = c.channels[0];
  if (height == 0 || width == 0)
    throw Error(fmt::format("an image of {} x {} is too small for the stem's pool", c.image[1],
                            c.image[2]));
  for (size_t stage = 0; stage < c.channels.size(); ++stage) {
    for (int64_t i = 0; i < c.depth; ++i) {
      const int64_t out = c.channels[stage], stride = stage > 0 && i == 0 ? 2 : 1;
      CnnBlockShape block;
      block.name = fmt::format("stages.{}.{}", stage, i);
      block.layers.push_back({height, width, in, out, 3, stride});
      height = block.layers[0].out_height();
      width = block.layers[0].out_width();
      if (c.residual) {
        // Where the shape changes, the input can only be added through a 1 x 1 convolution of
        // its own.
        if (stride != 1 || in != out) block.shortcut = block.layers[0], block.shortcut->kernel = 1;
        block.layers.push_back({height, width, out, out, 3, 1});
      }
      plan.blocks.push_back(std::move(block));
      in = out;
    }
  }

  // The last stage has the smallest images, so it is where batch norm could run out of values.
  if (plan.shape.norm == NormKind::kBatch && plan.shape.batch * height * width < 2)
    throw Error(
        "model.norm = \"batch\" with train.micro_batch_size = 1 and a last stage of 1 x 1: a "
        "single value has no "
        "deviation to divide by");
  return plan;
}

std::vector<Block> cnn_blocks(const CnnPlan& plan, const ModelConfig& config) {
  const Init init = init_of(config);

  // The order of parameters is CnnShape::layer_parameters' per layer, the shortcut last.
  std::vector<Block> blocks;
  Block& stem = blocks.emplace_back();
  stem.name = "stem";
  add_layer(stem, plan.shape, plan.stem, "", init);
  for (const CnnBlockShape& shape : plan.blocks) {
    Block& block = blocks.emplace_back();
    block.name = shape.name;
    for (size_t i = 0; i < shape.layers.size(); ++i)
      add_layer(block, plan.shape, shape.layers[i], std::to_string(i + 1), init);
    if (shape.shortcut) add_layer(block, plan.shape, *shape.shortcut, "_shortcut", init);
  }
  Block& head = blocks.emplace_back();
  head.name = "head";
  head.parameters.push_back(
      {"weight", {plan.shape.classes, plan.blocks.back().channels()}, init, ""});
  head.parameters.push_back({"bias", {plan.shape.classes}, {Init::Kind::kZeros, 1, {}}, ""});
  return blocks;
}

Block cnn_residual_column(const CnnPlan& plan, const Block& whole, const Columns& columns) {
  // Without a shortcut only the second convolution's follow the first's, and stay.
  Block block = column_block(whole, columns);
  const auto second = block.parameters.begin() + plan.shape.layer_parameters();
  std::rotate(second, second + plan.shape.layer_parameters(), block.parameters.end());
  return block;
}

Dropout cnn_dropout(const CnnShape& shape, const Pass& pass) {
  return {pass.training ? shape.dropout : 0.0,
          pass.seed,
          static_cast<uint64_t>(pass.step),
          static_cast<uint32_t>(pass.block / shape.columns),
          0,
          pass.first_sample,
          1};
}

}  // namespace tutti
