// What the hand-written GPT and its autograd twin share: sizes, parameters, borders, and how dropout is keyed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/segment.h"
#include "tensor/kernels.h"

namespace tutti {

struct GptShape {
  int64_t batch, length, width, heads, vocab, layers;
  Gelu gelu;
  double dropout;
  bool tied;
  int64_t rows() const { return batch * length; }
  int64_t dim() const { return width / heads; }
  AttentionShape attention() const { return {batch, length, heads, dim()}; }
};

GptShape gpt_shape(const ModelConfig& config, int64_t micro_batch_size);

/// Places of the parameters in their blocks' lists.
struct EmbedParameters {
  enum { kToken, kPosition };
};
struct LayerParameters {
  enum { kNorm1, kNorm1Bias, kQkv, kQkvBias, kProj, kProjBias, kNorm2, kNorm2Bias, kFc1, kFc1Bias, kFc2, kFc2Bias };
};
struct HeadParameters {
  enum { kNorm, kNormBias, kHead, kHeadBias };
};

/// The blocks with their parameters and without segments.
std::vector<Block> gpt_blocks(const ModelConfig& config);
/// tokens and targets.
std::vector<Border> gpt_data(const GptShape& shape);
Border gpt_stream(const GptShape& shape);  ///< "x" [batch, length, width]
Border gpt_logits(const GptShape& shape);
Border gpt_loss();

constexpr float kGptNormEps = 1e-5f;

/// The masks of a block: after the embedding; after attention; after the mlp.
enum class GptDropoutSite : uint32_t { kEmbed = 0, kAttention = 1, kMlp = 2 };
/// Its rate is 0 outside of training.
Dropout gpt_dropout(const GptShape& shape, const Pass& pass, GptDropoutSite site);

/// Throws Error naming the first id that is not below vocab (or is negative, where that has no meaning).
void check_ids(const int64_t* ids, int64_t count, int64_t vocab, bool negative_is_none, const char* what);

}  // namespace tutti
