// Puts the GPT's segments into its blocks.
#include "model/gpt.h"

#include "model/gpt_reference.h"
#include "model/gpt_segments.h"

namespace tutti {

Model make_gpt(const ModelConfig& config, int64_t micro_batch_size, const Kernels& kernels) {
  if (config.autograd) return make_gpt_reference(config, micro_batch_size);
  const GptShape shape = gpt_shape(config, micro_batch_size);
  Model model;
  model.blocks = gpt_blocks(config);
  model.data = gpt_data(shape);
  model.tokens_per_sample = shape.length;
  model.blocks.front().segments.push_back(make_gpt_embed(shape, kernels));
  for (int64_t i = 0; i < shape.layers; ++i) {
    auto& segments = model.blocks[static_cast<size_t>(i) + 1].segments;
    segments.push_back(make_gpt_attention(shape, kernels));
    segments.push_back(make_gpt_mlp(shape, kernels));
  }
  model.blocks.back().segments.push_back(make_gpt_head(shape, kernels));
  model.blocks.back().segments.push_back(make_gpt_loss(shape, kernels));
  return model;
}

}  // namespace tutti
