// A GPT with its memory and one micro-batch, for the tests that run it whole.
#pragma once

#include <ATen/ops/empty.h>

#include "base/philox.h"
#include "base/processor.h"
#include "model/gpt/gpt.h"
#include "unit/model/support/twin_case.h"

namespace tutti::test {

inline ModelConfig small_gpt() {
  ModelConfig c{};
  c.kind = "gpt";
  c.layers = 2;
  c.width = 32;
  c.heads = 2;
  c.context = 24;
  c.vocab = 29;
  c.activation = Activation::kGelu;
  c.init = InitKind::kNormal;
  c.init_scale = 0.15;
  c.norm = NormKind::kAuto;
  c.positions = Positions::kLearned;
  c.rotary_base = 10000;
  c.bias = true;
  return c;
}

/// The options of Llama at once: rotary positions, RMS norms, SwiGLU, grouped queries, no biases.
inline ModelConfig small_llama() {
  ModelConfig c = small_gpt();
  c.heads = 4;
  c.kv_heads = 2;
  c.norm = NormKind::kRms;
  c.positions = Positions::kRotary;
  c.activation = Activation::kSwiglu;
  c.bias = false;
  return c;
}

inline Job gpt_job(const ModelConfig& config, int64_t micro_batch_size) {
  Job job;
  job.model = config;
  job.loss.kind = "cross-entropy";
  job.train.micro_batch_size = micro_batch_size;
  return job;
}

class GptCase : public TwinCase {
 public:
  static constexpr int64_t kBatch = 3;

  GptCase(const ModelConfig& config, CodePath isa, MatmulKind matmul = MatmulKind::kOwn)
      : GptCase(gpt_job(config, kBatch), isa, matmul) {}
  GptCase(const Job& job, CodePath isa, MatmulKind matmul = MatmulKind::kOwn)
      : GptCase(job, kernels(isa, matmul)) {}
  /// The table must outlive it.
  GptCase(const Job& job, const Kernels& table) : TwinCase(make_gpt(job, table)) {
    const ModelConfig& config = job.model;
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      float* unit = units[b];
      for (const ParameterShape& p : shape.blocks[b].parameters) {
        // Every parameter away from its start, so that no gradient is zero by symmetry and no bias
        // is.
        for (int64_t i = 0; i < p.size; ++i) {
          const double draw = philox_normal(
              {3, Purpose::kTest, static_cast<uint64_t>(b), static_cast<uint64_t>(p.offset)}, i);
          const bool gain = p.dims.size() == 1 && p.name.find("norm") != std::string::npos &&
                            p.name.ends_with("weight");
          unit[p.offset + i] = static_cast<float>((gain ? 1 : 0) + 0.15 * draw);
        }
      }
    }
    tokens = at::empty({kBatch, config.context}, at::kLong);
    targets = at::empty({kBatch, config.context}, at::kLong);
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      tokens.mutable_data_ptr<int64_t>()[i] =
          static_cast<int64_t>(philox_below({4, Purpose::kTest, 0, 0}, i, config.vocab));
      targets.mutable_data_ptr<int64_t>()[i] =
          i % 7 == 3
              ? -1
              : static_cast<int64_t>(philox_below({4, Purpose::kTest, 1, 0}, i, config.vocab));
    }
    start({tokens, targets});
  }

  at::Tensor tokens, targets;
};

}  // namespace tutti::test
