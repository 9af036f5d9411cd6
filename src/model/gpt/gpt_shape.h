// What the hand-written GPT and its twin under autograd share: sizes, parameters, borders, and how
// dropout is keyed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/carver.h"
#include "model/core/segment.h"
#include "model/rules/gpt_rules.h"
#include "tensor/kernels.h"

namespace tutti {

/// The sizes and options of a GPT, per micro-batch.
struct GptShape {
  int64_t batch, length, width, heads, kv_heads, hidden, vocab, layers;
  Activation activation;
  double dropout;
  bool tied, rms, rotary, bias;
  double rotary_base;
  at::ScalarType type = at::kFloat;  ///< of activations

  int64_t rows() const { return batch * length; }
  int64_t dim() const { return width / heads; }
  /// The attention of one of `parts` equal parts of the heads.
  AttentionShape attention(int64_t parts = 1) const {
    return {batch, length, heads / parts, dim(), kv_heads / parts};
  }
  bool gated() const { return activation == Activation::kSwiglu; }
  /// Width of what fc1 puts out: hidden, or for a gate twice that (gate and up).
  int64_t fc1_columns() const { return gated() ? 2 * hidden : hidden; }
  /// Whether norms have a bias; RMS norm has none by definition.
  bool norm_bias() const { return bias && !rms; }
};

/// Throws Error for sizes and names that do not make a GPT.
GptShape gpt_shape(const ModelConfig& config, int64_t micro_batch_size);

/// The places of a norm's or linear layer's weight and bias in their block's list.
struct GptPlace {
  int weight = kNoPlace, bias = kNoPlace;
};
struct GptLayerPlaces {
  GptPlace norm1, qkv, proj, norm2, fc1, fc2;
};
struct GptHeadPlaces {
  GptPlace norm, head;
};
struct GptEmbedPlaces {
  static constexpr int kToken = 0, kPosition = 1;
};
GptLayerPlaces gpt_layer_places(const GptShape& shape);
GptHeadPlaces gpt_head_places(const GptShape& shape);

/// The blocks with their parameters and without segments.
std::vector<Block> gpt_blocks(const ModelConfig& config);
/// The data's tensors: tokens and targets.
std::vector<Border> gpt_data(const GptShape& shape);
Border gpt_stream(const GptShape& shape);  ///< "x" [batch, length, width]
Border gpt_logits(const GptShape& shape);
Border gpt_loss();

constexpr float kGptNormEps = 1e-5f;

/// Where masks are applied: after the embedding, after attention, after the mlp.
enum class GptDropoutSite : uint32_t { kEmbed = 0, kAttention = 1, kMlp = 2 };
/// The dropout of a site, keyed by the pass. Its rate is 0 outside of training.
Dropout gpt_dropout(const GptShape& shape, const Pass& pass, GptDropoutSite site);

/// Throws Error naming the first id that is not below vocab, or is negative unless that
/// means "none".
void check_ids(const int64_t* ids, int64_t count, int64_t vocab, bool negative_is_none,
               const char* what);

}  // namespace tutti
