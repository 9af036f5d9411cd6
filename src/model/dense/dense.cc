// Dense layers as blocks, whole or one column of them: by hand on the CPU, by autograd elsewhere.
#include "model/dense/dense.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>

#include "base/error.h"
#include "config/isa.h"
#include "model/adapt/adaptor.h"
#include "model/core/activation.h"
#include "model/core/by_hand.h"
#include "model/core/dropout.h"
#include "model/core/init.h"
#include "model/dense/dense_layer.h"

namespace tutti {

namespace {

constexpr double kNormEps = 1e-5;

/// Adds a norm's parameters; they follow weight and bias.
void add_norm(std::vector<Parameter>& parameters, NormKind norm, int64_t width) {
  if (norm == NormKind::kNone) return;
  parameters.push_back({"norm.weight", {width}, {Init::Kind::kOnes, 1, {}}, ""});
  if (norm == NormKind::kRms) return;
  parameters.push_back({"norm.bias", {width}, {Init::Kind::kZeros, 1, {}}, ""});
  if (norm != NormKind::kBatch) return;
  parameters.push_back({"norm.mean", {width}, {Init::Kind::kZeros, 1, {}}, "", Role::kMeanBuffer});
  parameters.push_back(
      {"norm.variance", {width}, {Init::Kind::kOnes, 1, {}}, "", Role::kMeanBuffer});
}

NormKind norm_of(const Job& job) {
  return job.model.norm == NormKind::kAuto ? NormKind::kNone : job.model.norm;
}

/// Applies a norm; p are the block's parameters, of which the norm's begin at 2.
at::Tensor normalised(NormKind norm, const at::Tensor& x, Tensors p, bool training) {
  if (norm == NormKind::kLayer) return at::layer_norm(x, {x.size(-1)}, p[2], p[3], kNormEps);
  if (norm == NormKind::kRms) return at::rms_norm(x.to(at::kFloat), {x.size(-1)}, p[2], kNormEps);
  if (norm == NormKind::kBatch)
    return at::batch_norm(x, p[2], p[3], p[4], p[5], training, kBatchMomentum, kNormEps, false);
  return x;
}

/// Dropout keyed by layer and sample. A column draws the mask of the whole layer and takes its own
/// units of it, so that the columns together drop what one block would.
at::Tensor dropped(const at::Tensor& x, double rate, const Pass& pass, const Columns& columns) {
  if (rate == 0 || !pass.training) return x;
  const auto layer = static_cast<uint32_t>(pass.block / columns.count);
  const Dropout dropout{
      rate, pass.seed, static_cast<uint64_t>(pass.step), layer, 0, pass.first_sample, 1, pass.keys};
  if (columns.count == 1) return x * keyed_mask(dropout, x);
  const int64_t width = x.size(1);
  const at::Tensor mask = keyed_mask(dropout, x.new_empty({x.size(0), columns.count * width}));
  return x * mask.narrow(1, columns.column * width, width);
}

using Layer = std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)>;

/// The function of a dense layer: dropout(activation(norm(linear(x)))).
Layer dense_layer(const Job& job, const Columns& columns) {
  return [norm = norm_of(job), activation = job.model.activation, rate = job.model.dropout,
          columns](const Pass& pass, Tensors p, const at::Tensor& x) {
    const at::Tensor y = normalised(norm, at::linear(x, p[0], p[1]), p, pass.training);
    return dropped(activate(activation, y), rate, pass, columns);
  };
}

/// The same for a layer by hand.
DenseLayerConfig dense_config(const Job& job, const Columns& columns) {
  return {norm_of(job), job.model.activation, job.model.dropout, columns};
}

at::Tensor linear_layer(const Pass&, Tensors p, const at::Tensor& x) {
  return at::linear(x, p[0], p[1]);
}

/// Adds a layer to a block that has its parameters, by hand or under autograd. `passed` borders are
/// copied from its inputs to its outputs.
Block layer_block(const Job& job, Block block, const DenseLayerConfig& config, Layer layer,
                  const Border& in, const Border& out, const std::vector<Border>& passed) {
  if (by_hand(job)) {
    block.segments.push_back(make_dense_layer(
        config, kernels(path_of(job.layout), job.numerics.matmul), in, out, passed));
    return block;
  }
  std::vector<Border> inputs = {in}, outputs = {out};
  inputs.insert(inputs.end(), passed.begin(), passed.end());
  outputs.insert(outputs.end(), passed.begin(), passed.end());
  AdaptOptions options = built_in_options(job);
  options.splits = true;

  // One matmul: 2 operations per weight and sample.
  options.flops = 2.0 * static_cast<double>(in.dims[0] * in.dims[1] * out.dims[1]);
  TensorFunction function = [layer = std::move(layer)](const Pass& pass, Tensors p,
                                                       Tensors tensors) {
    // Passed borders are copied, since an output may not be an input's tensor.
    std::vector<at::Tensor> results = {layer(pass, p, tensors[0])};
    for (size_t i = 1; i < tensors.size(); ++i) results.push_back(tensors[i].clone());
    return results;
  };
  return adapt(std::move(block.name), std::move(block.parameters), std::move(function),
               std::move(inputs), std::move(outputs), std::move(options));
}

/// A column of a layer, which ends with the join of all columns' parts.
Block layer_column(const Job& job, const Block& whole, const DenseLayerConfig& config, Layer layer,
                   const Border& in, const Border& out, const Columns& columns, Whole gradient) {
  Block block = layer_block(job, column_block(whole, columns), config, std::move(layer), in,
                            joined_part(out, columns), {});
  block.segments.push_back(join_segment(out, columns, gradient));
  return block;
}

/// Parameters of a dense layer. Refuses batch norm where it could not be computed.
std::vector<Parameter> dense_parameters(const Job& job, const Border& in, const Border& out) {
  std::vector<Parameter> parameters = linear_parameters(job, "", in.dims[1], out.dims[1]);
  const NormKind norm = norm_of(job);
  if (norm == NormKind::kBatch && out.dims[0] < 2)
    throw Error(
        "model.norm = \"batch\" with train.micro_batch_size = 1: a single sample has no deviation "
        "to divide by");
  add_norm(parameters, norm, out.dims[1]);
  return parameters;
}

}  // namespace

std::vector<Parameter> linear_parameters(const Job& job, const std::string& prefix, int64_t in,
                                         int64_t out) {
  return {{prefix + "weight", {out, in}, init_of(job.model), ""},
          {prefix + "bias", {out}, {Init::Kind::kZeros, 1, {}}, ""}};
}

Block dense_block(const Job& job, std::string name, const Border& in, const Border& out,
                  const std::vector<Border>& passed) {
  return layer_block(job, {std::move(name), dense_parameters(job, in, out), {}},
                     dense_config(job, {}), dense_layer(job, {}), in, out, passed);
}

Block linear_block(const Job& job, std::string name, const Border& in, const Border& out,
                   const std::vector<Border>& passed) {
  return layer_block(job,
                     {std::move(name), linear_parameters(job, "", in.dims[1], out.dims[1]), {}}, {},
                     linear_layer, in, out, passed);
}

Block dense_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                   const Columns& columns) {
  // Batch norm goes unit by unit, so it can be cut; the others need all units of a sample.
  if (const NormKind norm = norm_of(job); norm != NormKind::kNone && norm != NormKind::kBatch)
    throw Error(
        fmt::format("train.tensor_slices = {} but model.norm = \"{}\" goes over all units of a "
                    "layer, which are cut; "
                    "use batch or none",
                    columns.count, norm));
  return layer_column(job, {name, dense_parameters(job, in, out), {}}, dense_config(job, columns),
                      dense_layer(job, columns), in, out, columns, Whole::kSummed);
}

Block linear_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                    const Columns& columns, Whole gradient) {
  return layer_column(job, {name, linear_parameters(job, "", in.dims[1], out.dims[1]), {}}, {},
                      linear_layer, in, out, columns, gradient);
}

void add_dense(Model& model, const Job& job, const std::string& prefix,
               const std::vector<int64_t>& widths, Border& last,
               const std::vector<Border>& passed) {
  for (size_t i = 0; i < widths.size(); ++i) {
    const Border out{"hidden", {job.train.micro_batch_size, widths[i]}};
    model.blocks.push_back(dense_block(job, fmt::format("{}.{}", prefix, i), last, out, passed));
    last = out;
  }
}

}  // namespace tutti
