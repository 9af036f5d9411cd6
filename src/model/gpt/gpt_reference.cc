// The GPT's blocks as functions of tensors under autograd. Dropout multiplies by the same keyed
// masks as the kernels draw; on the CPU they are made element by element from the definition, so
// that the kernels have something to be compared with.
#include "model/gpt/gpt_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/real.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

#include "base/philox.h"
#include "model/adapt/adaptor.h"
#include "model/core/activation.h"
#include "model/core/device_tensor.h"
#include "model/core/dropout.h"
#include "model/core/repeatable.h"
#include "model/gpt/gpt_shape.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

// A mask by its definition. One draw of Philox has four words. Columns are taken in groups of 64
// and a group as 4 x 16: word w of draw i is for column 16 w + i of the group, which is how vector
// units draw 16 lanes at once.
at::Tensor mask(const Dropout& dropout, int64_t samples, int64_t width) {
  const at::Tensor factors = at::empty({samples, dropout.rows_per_sample, width}, at::kFloat);
  float* out = factors.mutable_data_ptr<float>();

  // A draw below the threshold drops the element; the others are scaled up.
  const auto threshold = static_cast<uint32_t>(dropout.rate * 0x1p32);
  const auto scale = static_cast<float>(1 / (1 - dropout.rate));
  const int64_t groups = (width + 63) / 64;

  // Each sample has a stream of its own, named by block, site and sample.
  for (int64_t s = 0; s < samples; ++s) {
    const uint64_t place = uint64_t{dropout.block} << 44 | uint64_t{dropout.site} << 40 |
                           static_cast<uint64_t>(dropout.first_sample + s);
    const PhiloxStream stream =
        philox_stream({dropout.seed, Purpose::kDropout, dropout.step, place});
    for (int64_t row = 0; row < dropout.rows_per_sample; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        const auto index = static_cast<uint64_t>(16 * (row * groups + c / 64) + c % 16);
        const auto words =
            philox_raw({stream.counter[0], stream.counter[1], static_cast<uint32_t>(index),
                        static_cast<uint32_t>(index >> 32)},
                       stream.key);
        *out++ = words[c % 64 / 16] >= threshold ? scale : 0.0f;
      }
    }
  }
  return factors;
}

at::Tensor dropped(const GptShape& shape, const Pass& pass, GptDropoutSite site,
                   const at::Tensor& x) {
  Dropout dropout = gpt_dropout(shape, pass, site);
  if (dropout.rate == 0) return x;
  dropout.keys = pass.keys;
  return x * (x.is_cpu() ? mask(dropout, shape.batch, shape.width) : keyed_mask(dropout, x));
}

/// A segment's parameters, taken one after the other in the order of gpt_blocks.
class Taken {
 public:
  explicit Taken(Tensors parameters) : rest_(parameters) {}
  at::Tensor one() {
    const at::Tensor first = rest_[0];
    rest_ = rest_.subspan(1);
    return first;
  }

  at::Tensor norm(const GptShape& shape, const at::Tensor& x) {
    const at::Tensor weight = one();
    if (shape.rms) return at::rms_norm(x.to(at::kFloat), {shape.width}, weight, kGptNormEps);
    const at::Tensor bias = shape.norm_bias() ? one() : at::Tensor();
    return at::layer_norm(x, {shape.width}, weight, bias, kGptNormEps);
  }
  at::Tensor linear(const at::Tensor& x, bool has_bias) {
    const at::Tensor weight = one();
    return has_bias ? at::linear(x, weight, one()) : at::linear(x, weight);
  }

 private:
  Tensors rest_;
};

/// e^(i angle) for every position and frequency, and its real and imaginary parts. Undefined if
/// positions are not rotary.
struct RotaryFactors {
  at::Tensor complex;
  DeviceConstant cosines, sines;
};

RotaryFactors rotary_factors(const GptShape& shape) {
  if (!shape.rotary) return {};
  const int64_t half = shape.dim() / 2;
  const at::Tensor frequencies =
      at::pow(shape.rotary_base, at::arange(half, at::kDouble) / -static_cast<double>(half));
  const at::Tensor angles = at::outer(at::arange(shape.length, at::kDouble), frequencies);
  const at::Tensor factors = at::polar(at::ones_like(angles), angles).to(at::kComplexFloat);
  return {factors, DeviceConstant(at::real(factors).contiguous()),
          DeviceConstant(at::imag(factors).contiguous())};
}

/// Rotates x [batch, heads, length, dim]: each head is seen as dim / 2 complex numbers, which are
/// multiplied by their factors.
at::Tensor turned(const GptShape& shape, const at::Tensor& x, const RotaryFactors& factors) {
  const int64_t half = shape.dim() / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  if (!x.is_cpu()) {
    const at::Tensor &cosines = factors.cosines.on(x.device()),
                     &sines = factors.sines.on(x.device());
    return at::cat({first * cosines - second * sines, first * sines + second * cosines}, -1);
  }

  // On a GPU the same product is written with real numbers (above), which can have 16 bits.
  const at::Tensor product = at::complex(first, second) * factors.complex;
  return at::cat({at::real(product), at::imag(product)}, -1);
}

at::Tensor embed(const GptShape& shape, const Pass& pass, Tensors p, const at::Tensor& tokens) {
  if (tokens.is_cpu())
    check_ids(tokens.const_data_ptr<int64_t>(), tokens.numel(), shape.vocab, false, "token");
  const at::Tensor x = at::embedding(p[0], tokens);
  return dropped(shape, pass, GptDropoutSite::kEmbed, shape.rotary ? x : x + p[1]);
}

// The attention branch: x + dropout(proj(attention(qkv(norm(x))))).
at::Tensor attention(const GptShape& shape, const RotaryFactors& factors, const Pass& pass,
                     Tensors parameters, const at::Tensor& x) {
  Taken p(parameters);
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads, group = heads / kv_heads;
  const at::Tensor normal = p.norm(shape, x);

  // qkv's rows are heads of queries, then of keys, then of values; each becomes [batch, heads,
  // length, dim].
  const at::Tensor qkv = p.linear(normal, shape.bias)
                             .view({shape.batch, shape.length, heads + 2 * kv_heads, shape.dim()})
                             .transpose(1, 2);
  at::Tensor q = qkv.narrow(1, 0, heads), k = qkv.narrow(1, heads, kv_heads);
  at::Tensor v = qkv.narrow(1, heads + kv_heads, kv_heads);
  if (shape.rotary) {
    q = turned(shape, q, factors);
    k = turned(shape, k, factors);
  }

  // Grouped queries: each head of keys and values serves `group` heads of queries.
  if (group > 1) {
    k = k.repeat_interleave(group, 1);
    v = v.repeat_interleave(group, 1);
  }

  // The heads are joined again into rows of the width.
  const at::Tensor mixed = causal_attention(q, k, v);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({shape.batch, shape.length, shape.width});
  return x + dropped(shape, pass, GptDropoutSite::kAttention, p.linear(joined, shape.bias));
}

// The mlp branch: x + dropout(fc2(f(fc1(norm(x))))).
at::Tensor mlp(const GptShape& shape, const Pass& pass, Tensors parameters, const at::Tensor& x) {
  Taken p(parameters);
  const at::Tensor normal = p.norm(shape, x);
  const at::Tensor hidden = p.linear(normal, shape.bias);
  at::Tensor active;
  if (shape.gated()) {
    const auto halves = hidden.chunk(2, -1);
    active = at::silu(halves[0]) * halves[1];
  } else {
    active = activate(shape.activation, hidden);
  }
  return x + dropped(shape, pass, GptDropoutSite::kMlp, p.linear(active, shape.bias));
}

at::Tensor head(const GptShape& shape, const Pass&, Tensors parameters, const at::Tensor& x) {
  Taken p(parameters);
  const at::Tensor normal = p.norm(shape, x);
  return p.linear(normal, shape.bias && !shape.tied);
}

// A segment under autograd that uses parameters [first, first + count) of its block.
std::unique_ptr<Segment> segment(
    const Job& job, std::string name, Border in, Border out, int first, int count,
    std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)> function) {
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = {std::move(in)};
  spec.outputs = {std::move(out)};
  spec.first_parameter = first;
  spec.parameters = count;
  spec.options = built_in_options(job);
  spec.function = [f = std::move(function)](const Pass& pass, Tensors p, Tensors x) {
    return std::vector<at::Tensor>{f(pass, p, x[0])};
  };
  return std::make_unique<AutogradSegment>(std::move(spec));
}

}  // namespace

Model make_gpt_reference(const Job& job) {
  const GptShape shape = gpt_shape(job.model, job.train.micro_batch_size);
  const Border x = gpt_stream(shape);

  // Data, check and task are those of the hand-written model.
  Model model;
  model.blocks = gpt_blocks(job.model);
  model.data = gpt_data(shape);
  model.tokens_per_sample = shape.length;
  model.task = Task::kTokens;
  model.check = [shape](Tensors data) {
    check_ids(data[0].const_data_ptr<int64_t>(), shape.rows(), shape.vocab, false, "token");
    check_ids(data[1].const_data_ptr<int64_t>(), shape.rows(), shape.vocab, true, "target");
  };

  // From here on blocks get their segments; each takes its part of the block's parameters in order.
  const RotaryFactors factors = rotary_factors(shape);
  using Function = at::Tensor (*)(const GptShape&, const Pass&, Tensors, const at::Tensor&);

  // Binds the shape to a function, and adds a segment that uses a block's parameters from
  // `first` on.
  const auto bound = [shape](Function f) {
    return [shape, f](const Pass& pass, Tensors p, const at::Tensor& in) {
      return f(shape, pass, p, in);
    };
  };
  const auto add = [&job](Block& block, const char* name, const Border& in, const Border& out,
                          int first, auto function) {
    const int count = static_cast<int>(block.parameters.size()) - first;
    block.segments.push_back(segment(job, name, in, out, first, count, function));
  };
  add(model.blocks.front(), "embed", model.data[0], x, 0, bound(embed));
  const int second = gpt_layer_places(shape).norm2.weight;  // where the mlp's parameters begin

  for (int64_t i = 0; i < shape.layers; ++i) {
    Block& block = model.blocks[static_cast<size_t>(i) + 1];
    block.segments.push_back(
        segment(job, "attention", x, x, 0, second,
                [shape, factors](const Pass& pass, Tensors p, const at::Tensor& in) {
                  return attention(shape, factors, pass, p, in);
                }));
    add(block, "mlp", x, x, second, bound(mlp));
  }
  add(model.blocks.back(), "head", x, gpt_logits(shape), 0, bound(head));
  model.blocks.back().segments.push_back(
      plain_cross_entropy(job.loss) ? cross_entropy_segment(gpt_logits(shape), model.data[1])
                                    : loss_segment(job, gpt_logits(shape), model.data));
  return model;
}

}  // namespace tutti
