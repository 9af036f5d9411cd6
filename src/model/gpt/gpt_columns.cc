// Cuts the GPT's parameters and puts the columns together.
#include "model/gpt/gpt_columns.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "model/core/column_block.h"
#include "model/gpt/gpt_column_segments.h"

namespace tutti {

namespace {

constexpr size_t kShared = 2;  // not cut; is no dim of a matrix

/// The dim by which a parameter is cut: outputs for what reads whole rows, inputs for what makes
/// partial sums. Norms, positions and the biases of sums are not cut.
size_t cut_dim(const std::string& name) {
  for (const char* by_rows : {"qkv.", "fc1.", "tok.", "head."})
    if (name.starts_with(by_rows)) return 0;
  return name == "proj.weight" || name == "fc2.weight" ? 1 : kShared;
}

/// A column's block: its part of every parameter.
Block cut_block(const Block& whole, int64_t columns, int64_t column) {
  Block block;
  block.name = column_name(whole.name, column);
  for (Parameter parameter : whole.parameters) {
    const size_t dim = cut_dim(parameter.name);
    if (dim == kShared) {
      // What is not cut is column 0's, and the others share it.
      if (column > 0) parameter.shared_with = whole.name + "/" + parameter.name;
    } else {
      // A tied head's part is tied to the same column's part of the embedding.
      const std::vector<int64_t> dims = parameter.dims;
      parameter.dims[dim] /= columns;
      if (dims.size() == 2) keep_deviation(parameter.init, dims, parameter.dims);
      if (!parameter.shared_with.empty())
        parameter.shared_with = column_name("embed", column) + "/tok.weight";
    }
    block.parameters.push_back(std::move(parameter));
  }
  return block;
}

template <class A>
void check(const Job& job, const GptShape& shape, const KernelsFor<A>& kernels) {
  // Collects every reason, so that all can be mended at once.
  const int64_t columns = job.train.tensor_slices;
  std::vector<std::string> faults;
  const auto cut = [&](const char* what, int64_t size) { check_cut(what, size, columns, faults); };

  cut("model.heads", shape.heads);
  cut("model.kv_heads", shape.kv_heads);
  cut("model.mlp_width", shape.hidden);
  cut("model.vocab", shape.vocab);
  cut("train.micro_batch_size x model.context", shape.rows());

  // The loss is joined of the columns' statistics, which suffice for the plain one alone.
  if (!plain_cross_entropy(job.loss))
    faults.push_back(
        fmt::format("train.tensor_slices = {} needs loss.kind = \"cross-entropy\" without "
                    "smoothing and weights",
                    columns));
  const auto& v = kernels.vocabulary;
  if (!v.embed || !v.embed_backward || !v.positions || !v.positions_backward || !v.statistics ||
      !v.cross_entropy || !v.cross_entropy_backward)
    faults.push_back(fmt::format(
        "train.tensor_slices = {} but numerics.device = \"{}\" has no kernels for slices of a "
        "vocabulary",
        columns, job.numerics.device));
  if (!faults.empty()) throw Error(fmt::format("{}", fmt::join(faults, "\n")));
}

}  // namespace

GptShape GptColumn::lines() const {
  GptShape shape = whole;
  shape.batch = rows();
  shape.length = 1;
  return shape;
}

Dropout GptColumn::dropout(const Pass& pass, GptDropoutSite site) const {
  // Rows draw what they draw in the whole model: keyed by its block and their place in it.
  Dropout dropout = gpt_dropout(whole, pass, site);
  // The layer is the whole model's block.
  dropout.block = static_cast<uint32_t>(pass.block / columns);
  dropout.first_row = first_row();
  return dropout;
}

// Borders: what one segment puts out and how the next one reads it must fit by Exchange's rules.
Border GptColumn::stream() const { return {"x", {rows(), whole.width}, whole.type}; }
Border GptColumn::normed() const {
  return {"normed", {rows(), whole.width}, whole.type, Exchange::kGather};
}
Border GptColumn::all_normed() const { return {"normed", {whole.rows(), whole.width}, whole.type}; }
Border GptColumn::part() const {
  return {"part", {whole.rows(), whole.width}, at::kFloat, Exchange::kScatter};
}
Border GptColumn::part_rows() const { return {"part", {rows(), whole.width}, whole.type}; }
Border GptColumn::passed_stream() const {
  Border border = stream();
  border.same_as = border.name;
  return border;
}
Border GptColumn::logits() const {
  return {"logits", {whole.batch, whole.length, vocab()}, whole.type};
}
Border GptColumn::statistics() const {
  return {"statistics", {whole.rows(), kStatistics}, at::kFloat, Exchange::kGather};
}
Border GptColumn::all_statistics() const {
  return {"statistics", {columns, whole.rows(), kStatistics}, at::kFloat};
}

template <class A>
std::vector<Block> gpt_column_blocks(const Job& job, const GptShape& shape,
                                     const KernelsFor<A>& kernels, const RotaryTable& rotary) {
  check(job, shape, kernels);
  const int64_t columns = job.train.tensor_slices;

  // Layer by layer, and within a layer column by column, as Model wants them.
  const std::vector<Block> whole = gpt_blocks(job.model);
  const GptLayerPlaces layer = gpt_layer_places(shape);
  std::vector<Block> blocks;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      const GptColumn column{shape, columns, c};
      Block& block = blocks.emplace_back(cut_block(whole[i], columns, c));

      // The segments of gpt_columns.h, in that order.
      const auto add = [&](std::unique_ptr<Segment> segment) {
        block.segments.push_back(std::move(segment));
      };
      if (i == 0) {
        add(make_column_embed(column, kernels));
        add(make_column_position(column, kernels));
      } else if (i + 1 < whole.size()) {
        add(make_column_norm(column, kernels, "norm1", layer.norm1, true));
        add(make_column_attention(column, kernels, rotary));
        add(make_column_join(column, kernels, "join1", layer.proj.bias, GptDropoutSite::kAttention,
                             layer.norm2));
        add(make_column_mlp(column, kernels));
        add(make_column_join(column, kernels, "join2", layer.fc2.bias, GptDropoutSite::kMlp,
                             GptPlace{}));
      } else {
        add(make_column_norm(column, kernels, "norm", gpt_head_places(shape).norm, false));
        add(make_column_logits(column, kernels));
        add(make_column_loss(column, kernels));
      }
    }
  }
  return blocks;
}

#define TUTTI_MAKE(A)                                                                              \
  template std::vector<Block> gpt_column_blocks(const Job&, const GptShape&, const KernelsFor<A>&, \
                                                const RotaryTable&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
