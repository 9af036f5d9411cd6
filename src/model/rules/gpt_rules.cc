// The arithmetic of a gpt's sizes: everything here follows from the job alone, so the command can
// refuse a job before any rank loads torch.
#include "model/rules/gpt_rules.h"

#include <fmt/format.h>

#include "config/job_parts.h"

namespace tutti {

namespace {

void check(const Job& job, const AddFault& fault) {
  const ModelConfig& model = job.model;
  if (model.heads <= 0) return;  // its range is checked by the schema

  // Heads cut the width, and share out those of keys and values.
  if (model.width % model.heads != 0) {
    fault({"model.width", "model.heads"},
          fmt::format("model.width = {} cannot be cut into model.heads = {}: a head is a whole "
                      "number of elements",
                      model.width, model.heads));
  } else if (model.positions == Positions::kRotary && model.width / model.heads % 2 != 0) {
    fault({"model.positions", "model.heads"},
          fmt::format(
              "model.positions = \"rotary\" but a head has {} elements: it turns pairs of them",
              model.width / model.heads));
  }
  if (model.kv_heads > 0 && model.heads % model.kv_heads != 0) {
    fault({"model.kv_heads", "model.heads"},
          fmt::format("model.heads = {} cannot be shared out over model.kv_heads = {}", model.heads,
                      model.kv_heads));
  }

  // Columns of the model meet in the loss.
  if (job.train.tensor_slices > 1 && !plain_cross_entropy(job.loss)) {
    fault({"train.tensor_slices", "loss.kind", "loss.label_smoothing", "loss.class_weights"},
          fmt::format(
              "train.tensor_slices = {} needs loss.kind = {} without smoothing and weights: it is "
              "what a slice of the vocabulary can say of the whole",
              job.train.tensor_slices, quoted_list(names_where<LossPart>(&LossPart::plain), "or")));
  }
}

std::vector<std::pair<std::string, int64_t>> cut_sizes(const Job& job) {
  const ModelConfig& model = job.model;
  std::vector<std::pair<std::string, int64_t>> sizes = {{"model.heads", model.heads}};
  if (model.kv_heads > 0) sizes.emplace_back("model.kv_heads", model.kv_heads);
  sizes.emplace_back("model.mlp_width", gpt_hidden_size(model));
  sizes.emplace_back("model.vocab", model.vocab);
  sizes.emplace_back("train.micro_batch_size x model.context",
                     job.train.micro_batch_size * model.context);
  return sizes;
}

/// The layers, and what stands before and after them.
int64_t most_stages(const Job& job) { return job.model.layers + 2; }

}  // namespace

// By default 4 width. swiglu has three matrices instead of two, so it gets 2/3 of that to have as
// many weights, rounded up to a multiple of 16.
int64_t gpt_hidden_size(const ModelConfig& config) {
  if (config.mlp_width > 0) return config.mlp_width;
  if (config.activation != Activation::kSwiglu) return 4 * config.width;
  return ((8 * config.width + 2) / 3 + 15) / 16 * 16;
}

// A loss that is still open is the plain one.
bool plain_cross_entropy(const LossConfig& loss) {
  const bool plain = is_open(loss.kind) || part_named<LossPart>(loss.kind).plain;
  return plain && loss.label_smoothing == 0 && loss.class_weights.empty();
}

ModelRules gpt_rules() { return {check, cut_sizes, most_stages}; }

}  // namespace tutti
