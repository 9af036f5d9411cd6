// The CNN's blocks as functions of tensors under autograd. Batch norm changes its buffers in place, which is what it
// proposes.
#include "model/cnn_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>

#include "model/activation.h"
#include "model/adaptor.h"
#include "model/dropout.h"
#include "model/repeatable.h"

namespace tutti {

namespace {

using Function = std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)>;

/// A convolution with its norm; p are its parameters.
at::Tensor layer(const CnnShape& shape, const ConvShape& conv, const Pass& pass, Tensors p, const at::Tensor& x) {
  const int64_t padding = conv.kernel / 2;
  const at::IntArrayRef stride(conv.stride);
  if (shape.norm == CnnNormKind::kNone) return at::conv2d(x, p[0], p[1], stride, padding);
  const at::Tensor y = at::conv2d(x, p[0], {}, stride, padding);
  if (shape.norm == CnnNormKind::kGroup)
    return at::group_norm(y, shape.groups(conv.out), p[1], p[2], kCnnNormEps, /*cudnn_enabled=*/false);
  return at::batch_norm(y, p[1], p[2], p[3], p[4], pass.training, kCnnMomentum, kCnnNormEps, /*cudnn_enabled=*/false);
}

at::Tensor stem(const CnnPlan& plan, const Pass& pass, Tensors p, const at::Tensor& images) {
  const at::Tensor x = activate(plan.shape.activation, layer(plan.shape, plan.stem, pass, p, images));
  return plan.shape.pool == Pool::kMax ? max_pool(x) : average_pool(x);
}

at::Tensor block(const CnnShape& shape, const CnnBlockShape& block, const Pass& pass, Tensors p, const at::Tensor& x) {
  const auto each = static_cast<size_t>(shape.layer_parameters());
  at::Tensor y = layer(shape, block.layers[0], pass, p, x);
  if (!shape.residual) return activate(shape.activation, y);
  y = layer(shape, block.layers[1], pass, p.subspan(each), activate(shape.activation, y));
  const at::Tensor beside = block.shortcut ? layer(shape, *block.shortcut, pass, p.subspan(2 * each), x) : x;
  return activate(shape.activation, y + beside);
}

at::Tensor dropped(const CnnShape& shape, const Pass& pass, const at::Tensor& x) {
  Dropout dropout = cnn_dropout(shape, pass);
  if (dropout.rate == 0) return x;
  dropout.keys = pass.keys;
  return x * keyed_mask(dropout, x);
}

std::unique_ptr<Segment> segment(const Job& job, std::string name, const Block& block, Border in, Border out,
                                 double flops, Function function) {
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = {std::move(in)};
  spec.outputs = {std::move(out)};
  spec.parameters = static_cast<int>(block.parameters.size());
  for (const Parameter& p : block.parameters) spec.roles.push_back(p.role);
  spec.options = built_in_options(job);
  spec.options.splits = true;
  spec.options.flops = flops;
  spec.function = [f = std::move(function)](const Pass& pass, Tensors p, Tensors x) {
    return std::vector<at::Tensor>{f(pass, p, x[0])};
  };
  return std::make_unique<AutogradSegment>(std::move(spec));
}

}  // namespace

void add_cnn_reference(const CnnPlan& plan, const Job& job, Model& model) {
  const CnnShape& shape = plan.shape;
  const double batch = static_cast<double>(shape.batch);
  Border x{"x", {shape.batch, plan.stem.out, plan.stem.height / 2, plan.stem.width / 2}, at::kFloat};
  model.blocks[0].segments.push_back(
      segment(job, "stem", model.blocks[0], model.data[0], x, plan.stem.flops() * batch,
              [plan](const Pass& pass, Tensors p, const at::Tensor& images) { return stem(plan, pass, p, images); }));
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const CnnBlockShape& part = plan.blocks[i];
    const Border out{"x", {shape.batch, part.channels(), part.height(), part.width()}, at::kFloat};
    double flops = part.shortcut ? part.shortcut->flops() : 0;
    for (const ConvShape& conv : part.layers) flops += conv.flops();
    Block& to = model.blocks[i + 1];
    to.segments.push_back(segment(
        job, "block", to, x, out, flops * batch,
        [shape, part](const Pass& pass, Tensors p, const at::Tensor& in) { return block(shape, part, pass, p, in); }));
    x = out;
  }
  const Border logits{"logits", {shape.batch, shape.classes}, at::kFloat};
  model.blocks.back().segments.push_back(segment(
      job, "head", model.blocks.back(), x, logits, 0, [shape](const Pass& pass, Tensors p, const at::Tensor& in) {
        return at::linear(dropped(shape, pass, at::mean(in, {2, 3})), p[0], p[1]);
      }));
}

}  // namespace tutti
