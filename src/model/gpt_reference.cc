// The GPT's blocks as functions of tensors under autograd. Dropout multiplies by the same keyed masks as the kernels
// draw, here element by element from the definition.
#include "model/gpt_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "base/philox.h"
#include "model/adaptor.h"
#include "model/gpt_shape.h"
#include "model/loss.h"

namespace tutti {

namespace {

at::Tensor mask(const Dropout& dropout, int64_t samples, int64_t width) {
  const at::Tensor factors = at::empty({samples, dropout.rows_per_sample, width}, at::kFloat);
  float* out = factors.mutable_data_ptr<float>();
  const auto threshold = static_cast<uint32_t>(dropout.rate * 0x1p32);
  const auto scale = static_cast<float>(1 / (1 - dropout.rate));
  const int64_t groups = (width + 63) / 64;
  for (int64_t s = 0; s < samples; ++s) {
    const uint64_t place =
        uint64_t{dropout.block} << 44 | uint64_t{dropout.site} << 40 | static_cast<uint64_t>(dropout.first_sample + s);
    const PhiloxStream stream = philox_stream({dropout.seed, Purpose::kDropout, dropout.step, place});
    for (int64_t row = 0; row < dropout.rows_per_sample; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        const auto index = static_cast<uint64_t>(16 * (row * groups + c / 64) + c % 16);
        const auto words = philox_raw(
            {stream.counter[0], stream.counter[1], static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)},
            stream.key);
        *out++ = words[c % 64 / 16] >= threshold ? scale : 0.0f;
      }
    }
  }
  return factors;
}

at::Tensor dropped(const GptShape& shape, const Pass& pass, GptDropoutSite site, const at::Tensor& x) {
  const Dropout dropout = gpt_dropout(shape, pass, site);
  return dropout.rate == 0 ? x : x * mask(dropout, shape.batch, shape.width);
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, kGptNormEps);
}

at::Tensor embed(const GptShape& shape, const Pass& pass, Tensors p, const at::Tensor& tokens) {
  check_ids(tokens.const_data_ptr<int64_t>(), tokens.numel(), shape.vocab, false, "token");
  return dropped(shape, pass, GptDropoutSite::kEmbed, at::embedding(p[0], tokens) + p[1]);
}

at::Tensor attention(const GptShape& shape, const Pass& pass, Tensors p, const at::Tensor& x) {
  const at::Tensor qkv = at::linear(norm(x, p[0], p[1]), p[2], p[3])
                             .view({shape.batch, shape.length, 3, shape.heads, shape.dim()})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({shape.batch, shape.length, shape.width});
  return x + dropped(shape, pass, GptDropoutSite::kAttention, at::linear(joined, p[4], p[5]));
}

at::Tensor mlp(const GptShape& shape, const Pass& pass, Tensors p, const at::Tensor& x) {
  const at::Tensor hidden = at::linear(norm(x, p[0], p[1]), p[2], p[3]);
  const at::Tensor active = at::gelu(hidden, shape.gelu == Gelu::kTanh ? "tanh" : "none");
  return x + dropped(shape, pass, GptDropoutSite::kMlp, at::linear(active, p[4], p[5]));
}

at::Tensor head(const GptShape& shape, Tensors p, const at::Tensor& x) {
  const at::Tensor normal = norm(x, p[0], p[1]);
  return shape.tied ? at::linear(normal, p[2]) : at::linear(normal, p[2], p[3]);
}

std::unique_ptr<Segment> segment(std::string name, Border in, Border out, int first, int count,
                                 std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)> function) {
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = {std::move(in)};
  spec.outputs = {std::move(out)};
  spec.first_parameter = first;
  spec.parameters = count;
  spec.function = [f = std::move(function)](const Pass& pass, Tensors p, Tensors x) {
    return std::vector<at::Tensor>{f(pass, p, x[0])};
  };
  return std::make_unique<AutogradSegment>(std::move(spec));
}

}  // namespace

Model make_gpt_reference(const ModelConfig& config, int64_t micro_batch_size) {
  const GptShape shape = gpt_shape(config, micro_batch_size);
  const Border x = gpt_stream(shape);
  Model model;
  model.blocks = gpt_blocks(config);
  model.data = gpt_data(shape);
  model.tokens_per_sample = shape.length;
  using Function = at::Tensor (*)(const GptShape&, const Pass&, Tensors, const at::Tensor&);
  const auto bound = [shape](Function f) {
    return [shape, f](const Pass& pass, Tensors p, const at::Tensor& in) { return f(shape, pass, p, in); };
  };
  model.blocks.front().segments.push_back(segment("embed", model.data[0], x, 0, 2, bound(embed)));
  for (int64_t i = 0; i < shape.layers; ++i) {
    auto& segments = model.blocks[static_cast<size_t>(i) + 1].segments;
    segments.push_back(segment("attention", x, x, 0, 6, bound(attention)));
    segments.push_back(segment("mlp", x, x, 6, 6, bound(mlp)));
  }
  auto& last = model.blocks.back().segments;
  last.push_back(segment("head", x, gpt_logits(shape), 0, shape.tied ? 3 : 4,
                         [shape](const Pass&, Tensors p, const at::Tensor& in) { return head(shape, p, in); }));
  last.push_back(cross_entropy_segment(gpt_logits(shape), model.data[1]));
  return model;
}

}  // namespace tutti
