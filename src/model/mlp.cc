#include "model/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>

#include "base/error.h"
#include "model/adaptor.h"
#include "model/init.h"
#include "model/loss.h"

namespace tutti {

namespace {

Block linear_block(const std::string& name, const Border& in, const Border& out, Init init, TensorFunction function) {
  std::vector<Parameter> parameters = {{"weight", {out.dims[1], in.dims[1]}, init, {}},
                                       {"bias", {out.dims[1]}, {Init::Kind::kZeros}, {}}};
  AdaptOptions options;
  options.flops = 2.0 * static_cast<double>(in.dims[0] * in.dims[1] * out.dims[1]);
  return adapt(name, std::move(parameters), std::move(function), {in}, {out}, std::move(options));
}

}  // namespace

Model make_mlp(const Job& job) {
  const ModelConfig& config = job.model;
  const int64_t micro_batch_size = job.train.micro_batch_size;
  const Init init = init_of(config);
  const std::string gelu = config.activation == "gelu-tanh" ? "tanh" : "none";
  const TensorFunction layer = [gelu](const Pass&, Tensors p, Tensors in) {
    return std::vector<at::Tensor>{at::gelu(at::linear(in[0], p[0], p[1]), gelu)};
  };
  const TensorFunction head = [](const Pass&, Tensors p, Tensors in) {
    return std::vector<at::Tensor>{at::linear(in[0], p[0], p[1])};
  };

  Model model;
  model.data = {{"features", {micro_batch_size, config.inputs}}, {"targets", {micro_batch_size}, at::kLong}};
  Border last = model.data[0];
  for (size_t i = 0; i < config.hidden.size(); ++i) {
    const Border out{"hidden", {micro_batch_size, config.hidden[i]}};
    model.blocks.push_back(linear_block(fmt::format("layers.{}", i), last, out, init, layer));
    last = out;
  }
  const Border logits{"logits", {micro_batch_size, config.classes}};
  model.blocks.push_back(linear_block("head", last, logits, init, head));
  model.blocks.back().segments.push_back(cross_entropy_segment(logits, model.data[1]));
  model.task = Task::kClasses;
  return model;
}

}  // namespace tutti
