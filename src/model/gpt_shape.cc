// Sizes, parameters and borders of the GPT.
#include "model/gpt_shape.h"

#include <cmath>

#include "base/error.h"
#include "model/init.h"

namespace tutti {

namespace {

Init weight_init(const ModelConfig& config, double factor) {
  Init init = init_of(config);
  init.scale *= factor;
  return init;
}

// Glorot and He are about layers that sum over inputs; a row of an embedding is looked up, so it stays (truncated)
// normal.
Init table_init(const ModelConfig& config) {
  const bool truncated = config.init == "truncated-normal";
  return {truncated ? Init::Kind::kTruncatedNormal : Init::Kind::kNormal, config.init_scale};
}

void add_norm(Block& block, const std::string& name, int64_t width) {
  block.parameters.push_back({name + ".weight", {width}, {Init::Kind::kOnes, 1}, ""});
  block.parameters.push_back({name + ".bias", {width}, {Init::Kind::kZeros, 1}, ""});
}

void add_linear(Block& block, const std::string& name, int64_t out, int64_t in, Init init) {
  block.parameters.push_back({name + ".weight", {out, in}, init, ""});
  block.parameters.push_back({name + ".bias", {out}, {Init::Kind::kZeros, 1}, ""});
}

}  // namespace

GptShape gpt_shape(const ModelConfig& config, int64_t micro_batch_size) {
  TUTTI_CHECK(config.heads > 0 && config.width % config.heads == 0, "width {} is not a multiple of {} heads",
              config.width, config.heads);
  return {micro_batch_size,
          config.context,
          config.width,
          config.heads,
          config.vocab,
          config.layers,
          config.activation == "gelu-tanh" ? Gelu::kTanh : Gelu::kExact,
          config.dropout,
          config.tied};
}

std::vector<Block> gpt_blocks(const ModelConfig& config) {
  const int64_t width = config.width;
  std::vector<Block> blocks;
  Block& embed = blocks.emplace_back();
  embed.name = "embed";
  embed.parameters.push_back({"tok.weight", {config.vocab, width}, table_init(config), ""});
  embed.parameters.push_back({"pos.weight", {config.context, width}, table_init(config), ""});

  const double residual = config.scaled_residual ? 1 / std::sqrt(2.0 * static_cast<double>(config.layers)) : 1;
  for (int64_t i = 0; i < config.layers; ++i) {
    Block& block = blocks.emplace_back();
    block.name = "blocks." + std::to_string(i);
    add_norm(block, "norm1", width);
    add_linear(block, "qkv", 3 * width, width, weight_init(config, 1));
    add_linear(block, "proj", width, width, weight_init(config, residual));
    add_norm(block, "norm2", width);
    add_linear(block, "fc1", 4 * width, width, weight_init(config, 1));
    add_linear(block, "fc2", width, 4 * width, weight_init(config, residual));
  }

  Block& head = blocks.emplace_back();
  head.name = "head";
  add_norm(head, "norm", width);
  if (config.tied) {
    head.parameters.push_back({"head.weight", {config.vocab, width}, table_init(config), "embed/tok.weight"});
  } else {
    add_linear(head, "head", config.vocab, width, weight_init(config, 1));
  }
  return blocks;
}

std::vector<Border> gpt_data(const GptShape& shape) {
  return {{"tokens", {shape.batch, shape.length}, at::kLong}, {"targets", {shape.batch, shape.length}, at::kLong}};
}
Border gpt_stream(const GptShape& shape) { return {"x", {shape.batch, shape.length, shape.width}, at::kFloat}; }
Border gpt_logits(const GptShape& shape) { return {"logits", {shape.batch, shape.length, shape.vocab}, at::kFloat}; }
Border gpt_loss() { return {"loss", {2}, at::kDouble}; }

Dropout gpt_dropout(const GptShape& shape, const Pass& pass, GptDropoutSite site) {
  return {pass.training ? shape.dropout : 0.0,
          pass.seed,
          static_cast<uint64_t>(pass.step),
          static_cast<uint32_t>(pass.block),
          static_cast<uint32_t>(site),
          pass.first_sample,
          shape.length};
}

void check_ids(const int64_t* ids, int64_t count, int64_t vocab, bool negative_is_none, const char* what) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab && (ids[i] >= 0 || negative_is_none)) continue;
    throw Error(fmt::format("{} {} is {}, outside of the model's vocabulary of {}", what, i, ids[i], vocab));
  }
}

}  // namespace tutti
