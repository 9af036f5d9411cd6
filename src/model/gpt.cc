// Puts the GPT's segments into its blocks.
#include "model/gpt.h"

#include "model/gpt_reference.h"
#include "model/gpt_segments.h"
#include "model/loss.h"

namespace tutti {

Model make_gpt(const Job& job, const Kernels& kernels) {
  if (job.model.autograd) return make_gpt_reference(job);
  const GptShape shape = gpt_shape(job.model, job.train.micro_batch_size);
  Model model;
  model.blocks = gpt_blocks(job.model);
  model.data = gpt_data(shape);
  model.tokens_per_sample = shape.length;
  model.task = Task::kTokens;
  RotaryTable rotary;
  if (shape.rotary)
    rotary = std::make_shared<const std::vector<float>>(rotary_table(shape.length, shape.dim(), shape.rotary_base));
  model.blocks.front().segments.push_back(make_gpt_embed(shape, kernels));
  for (int64_t i = 0; i < shape.layers; ++i) {
    auto& segments = model.blocks[static_cast<size_t>(i) + 1].segments;
    segments.push_back(make_gpt_attention(shape, kernels, rotary));
    segments.push_back(make_gpt_mlp(shape, kernels));
  }
  auto& last = model.blocks.back().segments;
  last.push_back(make_gpt_head(shape, kernels));
  last.push_back(plain_cross_entropy(job.loss) ? make_gpt_loss(shape, kernels)
                                               : loss_segment(job, gpt_logits(shape), model.data));
  return model;
}

}  // namespace tutti
