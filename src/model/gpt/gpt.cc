// Puts the GPT's segments into its blocks: the whole model by hand, in columns, or under autograd.
#include "model/gpt/gpt.h"

#include <algorithm>

#include "base/error.h"
#include "model/gpt/gpt_columns.h"
#include "model/gpt/gpt_reference.h"
#include "model/gpt/gpt_segments.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

// The angles of rotary positions, made once for all layers and copied to where the model computes.
RotaryTable rotary_of(const GptShape& shape, bool on_device) {
  if (!shape.rotary) return {};
  const std::vector<float> angles = rotary_table(shape.length, shape.dim(), shape.rotary_base);
  const at::Tensor table = at::empty({static_cast<int64_t>(angles.size())}, at::kFloat);
  std::copy(angles.begin(), angles.end(), table.mutable_data_ptr<float>());
  return on_device ? table.to(at::kCUDA) : table;
}

}  // namespace

template <class A>
Model make_gpt(const Job& job, const KernelsFor<A>& kernels) {
  const bool in_columns = job.train.tensor_slices > 1;
  if (job.model.autograd && in_columns)
    throw Error(
        fmt::format("train.tensor_slices = {} but model.autograd is true: it has no columns",
                    job.train.tensor_slices));
  if (job.model.autograd) return make_gpt_reference(job);

  // Borders carry the type of the activations, which is that of the kernels.
  GptShape shape = gpt_shape(job.model, job.train.micro_batch_size);
  shape.type = c10::CppTypeToScalarType<A>::value;
  Model model;
  model.data = gpt_data(shape);
  model.tokens_per_sample = shape.length;
  model.task = Task::kTokens;
  model.check = [shape](Tensors data) {
    check_ids(ids(data[0]), shape.rows(), shape.vocab, false, "token");
    check_ids(ids(data[1]), shape.rows(), shape.vocab, true, "target");
  };

  // In columns each has a slice of the logits, so evaluation must know that they are cut.
  const RotaryTable rotary = rotary_of(shape, job.numerics.device == DeviceKind::kCuda);
  if (in_columns) {
    model.columns = static_cast<int>(job.train.tensor_slices);
    model.output_sliced = true;
    model.blocks = gpt_column_blocks(job, shape, kernels, rotary);
    return model;
  }

  // The whole model: its blocks have their parameters, and segments are added in their order.
  model.blocks = gpt_blocks(job.model);
  model.blocks.front().segments.push_back(make_gpt_embed(shape, kernels));
  for (int64_t i = 0; i < shape.layers; ++i) {
    auto& segments = model.blocks[static_cast<size_t>(i) + 1].segments;
    segments.push_back(make_gpt_attention(shape, kernels, rotary));
    segments.push_back(make_gpt_mlp(shape, kernels));
  }

  // Plain cross-entropy has a kernel of its own; other losses go through ATen.
  auto& last = model.blocks.back().segments;
  last.push_back(make_gpt_head(shape, kernels));
  last.push_back(plain_cross_entropy(job.loss) ? make_gpt_loss(shape, kernels)
                                               : loss_segment(job, gpt_logits(shape), model.data));
  return model;
}

#define TUTTI_MAKE(A) template Model make_gpt(const Job&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
