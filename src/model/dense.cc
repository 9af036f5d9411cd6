#include "model/dense.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>

#include "base/error.h"
#include "model/activation.h"
#include "model/adaptor.h"
#include "model/dropout.h"
#include "model/init.h"

namespace tutti {

namespace {

constexpr double kNormEps = 1e-5, kBatchMomentum = 0.1;

/// The norms' parameters come behind weight and bias.
void add_norm(std::vector<Parameter>& parameters, const std::string& norm, int64_t width) {
  if (norm == "none") return;
  parameters.push_back({"norm.weight", {width}, {Init::Kind::kOnes, 1, {}}, ""});
  if (norm == "rms") return;
  parameters.push_back({"norm.bias", {width}, {Init::Kind::kZeros, 1, {}}, ""});
  if (norm != "batch") return;
  parameters.push_back({"norm.mean", {width}, {Init::Kind::kZeros, 1, {}}, "", Role::kMeanBuffer});
  parameters.push_back({"norm.variance", {width}, {Init::Kind::kOnes, 1, {}}, "", Role::kMeanBuffer});
}

at::Tensor normalised(const std::string& norm, const at::Tensor& x, Tensors p, bool training) {
  if (norm == "layer") return at::layer_norm(x, {x.size(-1)}, p[2], p[3], kNormEps);
  if (norm == "rms") return at::rms_norm(x.to(at::kFloat), {x.size(-1)}, p[2], kNormEps);
  if (norm == "batch") return at::batch_norm(x, p[2], p[3], p[4], p[5], training, kBatchMomentum, kNormEps, false);
  return x;
}

at::Tensor dropped(const at::Tensor& x, double rate, const Pass& pass) {
  if (rate == 0 || !pass.training) return x;
  const Dropout dropout{
      rate, pass.seed, static_cast<uint64_t>(pass.step), static_cast<uint32_t>(pass.block), 0, pass.first_sample,
      1,    pass.keys};
  return x * keyed_mask(dropout, x);
}

Block layer_block(const Job& job, std::string name, std::vector<Parameter> parameters, const Border& in,
                  const Border& out, const std::vector<Border>& passed,
                  std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)> layer) {
  std::vector<Border> inputs = {in}, outputs = {out};
  inputs.insert(inputs.end(), passed.begin(), passed.end());
  outputs.insert(outputs.end(), passed.begin(), passed.end());
  AdaptOptions options = built_in_options(job);
  options.splits = true;
  options.flops = 2.0 * static_cast<double>(in.dims[0] * in.dims[1] * out.dims[1]);
  TensorFunction function = [layer = std::move(layer)](const Pass& pass, Tensors p, Tensors tensors) {
    std::vector<at::Tensor> results = {layer(pass, p, tensors[0])};
    for (size_t i = 1; i < tensors.size(); ++i) results.push_back(tensors[i].clone());
    return results;
  };
  return adapt(std::move(name), std::move(parameters), std::move(function), std::move(inputs), std::move(outputs),
               std::move(options));
}

}  // namespace

std::vector<Parameter> linear_parameters(const Job& job, const std::string& prefix, int64_t in, int64_t out) {
  return {{prefix + "weight", {out, in}, init_of(job.model), ""},
          {prefix + "bias", {out}, {Init::Kind::kZeros, 1, {}}, ""}};
}

Block dense_block(const Job& job, std::string name, const Border& in, const Border& out,
                  const std::vector<Border>& passed) {
  std::vector<Parameter> parameters = linear_parameters(job, "", in.dims[1], out.dims[1]);
  const std::string norm = job.model.norm == "auto" ? "none" : job.model.norm;
  if (norm == "batch" && in.dims[0] < 2)
    throw Error(
        "model.norm = \"batch\" with train.micro_batch_size = 1: a single sample has no deviation to divide by");
  add_norm(parameters, norm, out.dims[1]);
  auto layer = [norm, activation = job.model.activation, rate = job.model.dropout](const Pass& pass, Tensors p,
                                                                                   const at::Tensor& x) {
    const at::Tensor y = normalised(norm, at::linear(x, p[0], p[1]), p, pass.training);
    return dropped(activate(activation, y), rate, pass);
  };
  return layer_block(job, std::move(name), std::move(parameters), in, out, passed, std::move(layer));
}

Block linear_block(const Job& job, std::string name, const Border& in, const Border& out,
                   const std::vector<Border>& passed) {
  return layer_block(job, std::move(name), linear_parameters(job, "", in.dims[1], out.dims[1]), in, out, passed,
                     [](const Pass&, Tensors p, const at::Tensor& x) { return at::linear(x, p[0], p[1]); });
}

void add_dense(Model& model, const Job& job, const std::string& prefix, const std::vector<int64_t>& widths,
               Border& last, const std::vector<Border>& passed) {
  for (size_t i = 0; i < widths.size(); ++i) {
    const Border out{"hidden", {job.train.micro_batch_size, widths[i]}};
    model.blocks.push_back(dense_block(job, fmt::format("{}.{}", prefix, i), last, out, passed));
    last = out;
  }
}

}  // namespace tutti
