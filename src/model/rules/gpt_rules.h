// What a gpt asks of a job before it is made: sizes that heads and columns cut, and the loss that
// columns of the vocabulary allow. It is free of torch, like all of this room.
#pragma once

#include "config/model_rules.h"

namespace tutti {

ModelRules gpt_rules();

/// The hidden size of the MLP: model.mlp_width, or what 0 stands for.
int64_t gpt_hidden_size(const ModelConfig& model);
/// Whether the loss is cross-entropy without smoothing and weights.
bool plain_cross_entropy(const LossConfig& loss);

}  // namespace tutti
