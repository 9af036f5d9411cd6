// The wide part memorises categories and pairs of them by one weight each; the deep part
// generalises through embeddings. All categories of all fields share one table, in which each field
// begins at a row of its own.
#include "model/dense/wide_deep.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "model/adapt/adaptor.h"
#include "model/core/by_hand.h"
#include "model/core/data_borders.h"
#include "model/core/device_tensor.h"
#include "model/core/init.h"
#include "model/dense/dense.h"
#include "model/dense/wide_deep_segments.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

/// How many categories each field of a record has.
std::vector<int64_t> field_sizes(const Job& job) {
  std::vector<int64_t> sizes = fields_of(job).categories;
  if (sizes.empty())
    throw Error(
        "model.kind = \"wide-deep\" but data.columns has no category to embed; \"mlp\" reads "
        "numbers alone");
  return sizes;
}

FieldRows rows_of(const std::vector<int64_t>& sizes) {
  FieldRows fields;
  for (int64_t size : sizes) {
    fields.starts.push_back(fields.rows);
    fields.rows += size;
  }
  return fields;
}

/// Where each field begins, as [1, fields].
at::Tensor starts_of(const FieldRows& fields) { return at::tensor(fields.starts).unsqueeze(0); }

/// Pairs (a, b) of a record's fields, a < b, in the order of crossed().
struct Pairs {
  DeviceConstant first, second;
};

Pairs field_pairs(int64_t fields) {
  std::vector<int64_t> first, second;
  for (int64_t a = 0; a < fields; ++a)
    for (int64_t b = a + 1; b < fields; ++b) first.push_back(a), second.push_back(b);
  return {DeviceConstant(at::tensor(first, at::kLong)),
          DeviceConstant(at::tensor(second, at::kLong))};
}

/// crossed() by operations on tensors. kCrosses is a power of two, so the remainder is a mask of
/// the lowest bits, which the sign that a shift brings in does not reach.
at::Tensor crossed_on_device(const at::Tensor& rows, const Pairs& pairs) {
  static_assert((kCrosses & (kCrosses - 1)) == 0 && kCrosses <= int64_t{1} << 24);
  const at::Tensor a = rows.index_select(1, pairs.first.on(rows.device()));
  const at::Tensor b = rows.index_select(1, pairs.second.on(rows.device()));
  const at::Tensor product =
      (a * (int64_t{1} << 32) + b) * static_cast<int64_t>(FieldRows::kCrossFactor);
  return at::bitwise_right_shift(product, 40) & (kCrosses - 1);
}

/// The place of every pair of a record's categories among kCrosses hashed weights.
at::Tensor crossed(const at::Tensor& rows, const Pairs& pairs) {
  if (!rows.is_cpu()) return crossed_on_device(rows, pairs);
  const int64_t records = rows.size(0), fields = rows.size(1);
  const at::Tensor places = at::empty({records, fields * (fields - 1) / 2}, at::kLong);
  const auto* from = rows.const_data_ptr<int64_t>();
  auto* to = places.mutable_data_ptr<int64_t>();
  for (int64_t r = 0; r < records; ++r, from += fields) {
    for (int64_t a = 0; a < fields; ++a)
      for (int64_t b = a + 1; b < fields; ++b) *to++ = FieldRows::cross(from[a], from[b]);
  }
  return places;
}

/// Throws for a row outside of the joint table, which has `total`.
void check_categories(const at::Tensor& rows, int64_t total) {
  const at::Tensor all = rows.contiguous();
  const auto* row = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < all.numel(); ++i)
    if (row[i] < 0 || row[i] >= total)
      throw Error(fmt::format("category {} of the micro-batch is in row {} of a table of {}", i,
                              row[i], total));
}

/// Numbers and the embeddings of all categories, one after the other: what the deep part reads.
Block embed_block(const Job& job, const Model& model, const FieldRows& fields, const Border& out) {
  std::vector<Parameter> parameters = {
      {"weight", {fields.rows, job.model.embedding}, {Init::Kind::kNormal, 0.1, {}}, ""}};
  if (by_hand(job)) {
    Block block{"embed", std::move(parameters), {}};
    block.segments.push_back(make_fields_embed(fields, model.data[0], model.data[1], out));
    return block;
  }
  TensorFunction function = [starts = DeviceConstant(starts_of(fields))](const Pass&, Tensors p,
                                                                         Tensors in) {
    const at::Tensor vectors = at::embedding(p[0], in[1] + starts.on(in[1].device())).flatten(1);
    return std::vector<at::Tensor>{at::cat({in[0], vectors}, 1)};
  };
  return adapt("embed", std::move(parameters), std::move(function), {model.data[0], model.data[1]},
               {out}, built_in_options(job));
}

/// The last layer of the deep part plus the wide part, which reads the data itself.
Block head_block(const Job& job, const Model& model, const FieldRows& fields, const Border& in,
                 const Border& out) {
  const int64_t numbers = model.data[0].dims[1], outputs = out.dims[1];
  const Init zeros{Init::Kind::kZeros, 1, {}};
  std::vector<Parameter> parameters = linear_parameters(job, "deep.", in.dims[1], outputs);
  parameters.push_back({"wide.categories", {fields.rows, outputs}, zeros, ""});
  parameters.push_back({"wide.crosses", {kCrosses, outputs}, zeros, ""});
  if (numbers > 0) parameters.push_back({"wide.numbers", {outputs, numbers}, zeros, ""});
  if (by_hand(job)) {
    Block block{"head", std::move(parameters), {}};
    block.segments.push_back(make_fields_head(fields,
                                              kernels(path_of(job.layout), job.numerics.matmul), in,
                                              model.data[0], model.data[1], out));
    return block;
  }
  TensorFunction function = [starts = DeviceConstant(starts_of(fields)),
                             pairs = field_pairs(static_cast<int64_t>(fields.starts.size()))](
                                const Pass&, Tensors p, Tensors x) {
    // p: deep.weight, deep.bias, wide.categories, wide.crosses, wide.numbers if there are numbers.
    const at::Tensor rows = (x[2] + starts.on(x[2].device())).contiguous();
    at::Tensor wide =
        at::embedding(p[2], rows).sum(1) + at::embedding(p[3], crossed(rows, pairs)).sum(1);
    if (p.size() > 4) wide = wide + at::linear(x[1], p[4]);
    return std::vector<at::Tensor>{at::linear(x[0], p[0], p[1]) + wide};
  };
  return adapt("head", std::move(parameters), std::move(function),
               {in, model.data[0], model.data[1]}, {out}, built_in_options(job));
}

}  // namespace

Model make_wide_deep(const Job& job) {
  Model model;
  model.data = data_borders(job);

  // The perceptron's input is the record's numbers and one embedding per field.
  const std::vector<int64_t> sizes = field_sizes(job);
  const FieldRows fields = rows_of(sizes);
  const int64_t width =
      model.data[0].dims[1] + static_cast<int64_t>(sizes.size()) * job.model.embedding;
  Border last{"hidden", {job.train.micro_batch_size, width}};
  model.blocks.push_back(embed_block(job, model, fields, last));
  add_dense(model, job, "layers", job.model.hidden, last);
  const Border output{"logits", {job.train.micro_batch_size, job.model.outputs}};
  model.blocks.push_back(head_block(job, model, fields, last, output));
  model.blocks.back().segments.push_back(loss_segment(job, output, model.data));
  model.check = [starts = starts_of(fields), rows = fields.rows](Tensors data) {
    check_categories(data[1] + starts, rows);
  };
  model.task = loss_part(job).yes_or_no ? Task::kBinary : Task::kValues;
  return model;
}

}  // namespace tutti
