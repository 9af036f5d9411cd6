// Derives sizes, parameters and borders of the GPT from a job: the one place that decides
// their order.
#include "model/gpt/gpt_shape.h"

#include <cmath>

#include "base/error.h"
#include "model/core/init.h"

namespace tutti {

namespace {

// The job's init with its scale times `factor`.
Init weight_init(const ModelConfig& config, double factor) {
  Init init = init_of(config);
  init.scale *= factor;
  return init;
}

// Glorot and He are made for layers that sum over their inputs. A row of an embedding is looked up,
// so it stays (truncated) normal.
Init table_init(const ModelConfig& config) {
  const bool truncated = config.init == InitKind::kTruncatedNormal;
  return {truncated ? Init::Kind::kTruncatedNormal : Init::Kind::kNormal, config.init_scale, {}};
}

void add_bias(Block& block, const std::string& name, int64_t size) {
  block.parameters.push_back({name + ".bias", {size}, {Init::Kind::kZeros, 1, {}}, ""});
}

void add_norm(Block& block, const std::string& name, const GptShape& shape) {
  block.parameters.push_back({name + ".weight", {shape.width}, {Init::Kind::kOnes, 1, {}}, ""});
  if (shape.norm_bias()) add_bias(block, name, shape.width);
}

void add_linear(Block& block, const std::string& name, int64_t out, int64_t in, const Init& init,
                bool bias) {
  block.parameters.push_back({name + ".weight", {out, in}, init, ""});
  if (bias) add_bias(block, name, out);
}

/// Deals out places in the same order in which add_norm and add_linear add parameters.
class Places {
 public:
  GptPlace next(bool bias) {
    GptPlace place;
    place.weight = next_++;
    if (bias) place.bias = next_++;
    return place;
  }

 private:
  int next_ = 0;
};

}  // namespace

GptShape gpt_shape(const ModelConfig& config, int64_t micro_batch_size) {
  if (config.heads <= 0 || config.width % config.heads != 0)
    throw Error(fmt::format("model.width = {} cannot be cut into model.heads = {}", config.width,
                            config.heads));
  GptShape shape{};

  shape.batch = micro_batch_size;
  shape.length = config.context;
  shape.width = config.width;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads == 0 ? config.heads : config.kv_heads;
  shape.hidden = gpt_hidden_size(config);
  shape.vocab = config.vocab;
  shape.layers = config.layers;
  shape.activation = config.activation;
  shape.dropout = config.dropout;
  shape.tied = config.tied;
  shape.rms = config.norm == NormKind::kRms;
  shape.rotary = config.positions == Positions::kRotary;
  shape.bias = config.bias;
  shape.rotary_base = config.rotary_base;

  // What the configuration cannot check, because it takes several keys together.
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0)
    throw Error(fmt::format("model.heads = {} cannot be cut into groups for model.kv_heads = {}",
                            shape.heads, shape.kv_heads));
  if (shape.rotary && shape.dim() % 2 != 0)
    throw Error(fmt::format("model.positions = \"rotary\" turns pairs, but a head has {} elements",
                            shape.dim()));
  if (!shape.rms && config.norm != NormKind::kLayer && config.norm != NormKind::kAuto)
    throw Error(fmt::format("model.norm = \"{}\" but model.kind = \"gpt\": it has layer or rms",
                            config.norm));

  // An unknown activation throws here.
  return shape;
}

// These two follow gpt_blocks below: the order in which it adds parameters.
GptLayerPlaces gpt_layer_places(const GptShape& shape) {
  Places places;
  GptLayerPlaces all;
  all.norm1 = places.next(shape.norm_bias());
  all.qkv = places.next(shape.bias);
  all.proj = places.next(shape.bias);
  all.norm2 = places.next(shape.norm_bias());
  all.fc1 = places.next(shape.bias);
  all.fc2 = places.next(shape.bias);
  return all;
}

GptHeadPlaces gpt_head_places(const GptShape& shape) {
  Places places;
  GptHeadPlaces all;
  all.norm = places.next(shape.norm_bias());
  all.head = places.next(shape.bias && !shape.tied);
  return all;
}

// All blocks with their parameters. Names and order are those of checkpoints.
std::vector<Block> gpt_blocks(const ModelConfig& config) {
  const GptShape shape = gpt_shape(config, 1);
  const int64_t width = shape.width;
  std::vector<Block> blocks;
  Block& embed = blocks.emplace_back();
  embed.name = "embed";
  embed.parameters.push_back({"tok.weight", {config.vocab, width}, table_init(config), ""});
  if (!shape.rotary)
    embed.parameters.push_back({"pos.weight", {config.context, width}, table_init(config), ""});

  // GPT-2 scales down what is added to the residual stream: it gets 2 additions per layer, whose
  // variances would add up.
  const double residual =
      config.scaled_residual ? 1 / std::sqrt(2.0 * static_cast<double>(config.layers)) : 1;
  for (int64_t i = 0; i < config.layers; ++i) {
    Block& block = blocks.emplace_back();
    block.name = "blocks." + std::to_string(i);
    add_norm(block, "norm1", shape);
    add_linear(block, "qkv", shape.attention().columns(), width, weight_init(config, 1),
               shape.bias);
    add_linear(block, "proj", width, width, weight_init(config, residual), shape.bias);
    add_norm(block, "norm2", shape);
    add_linear(block, "fc1", shape.fc1_columns(), width, weight_init(config, 1), shape.bias);
    add_linear(block, "fc2", width, shape.hidden, weight_init(config, residual), shape.bias);
  }

  // A tied head uses the embedding's table as its weight (weight tying); its init is the owner's.
  Block& head = blocks.emplace_back();
  head.name = "head";
  add_norm(head, "norm", shape);
  if (config.tied) {
    head.parameters.push_back(
        {"head.weight", {config.vocab, width}, table_init(config), "embed/tok.weight"});
  } else {
    add_linear(head, "head", config.vocab, width, weight_init(config, 1), shape.bias);
  }
  return blocks;
}

std::vector<Border> gpt_data(const GptShape& shape) {
  return {{"tokens", {shape.batch, shape.length}, at::kLong},
          {"targets", {shape.batch, shape.length}, at::kLong}};
}
Border gpt_stream(const GptShape& shape) {
  return {"x", {shape.batch, shape.length, shape.width}, shape.type};
}
Border gpt_logits(const GptShape& shape) {
  return {"logits", {shape.batch, shape.length, shape.vocab}, shape.type};
}
Border gpt_loss() { return {"loss", {2}, at::kDouble}; }

// All that a mask depends on; rows of a sample are its positions.
Dropout gpt_dropout(const GptShape& shape, const Pass& pass, GptDropoutSite site) {
  return {pass.training ? shape.dropout : 0.0,
          pass.seed,
          static_cast<uint64_t>(pass.step),
          static_cast<uint32_t>(pass.block),
          static_cast<uint32_t>(site),
          pass.first_sample,
          shape.length,
          pass.keys};
}

void check_ids(const int64_t* ids, int64_t count, int64_t vocab, bool negative_is_none,
               const char* what) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab && (ids[i] >= 0 || negative_is_none)) continue;
    throw Error(fmt::format("{} {} is {}, outside of the model's vocabulary of {}", what, i, ids[i],
                            vocab));
  }
}

}  // namespace tutti
