// The CNN's blocks as functions of tensors under autograd: what the hand-written segments are
// tested against, and what runs on a GPU. Batch norm changes its buffers in place, and the changed
// values are its proposals.
#include "model/cnn/cnn_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>

#include "model/adapt/adaptor.h"
#include "model/core/activation.h"
#include "model/core/dropout.h"
#include "model/core/repeatable.h"

namespace tutti {

namespace {

// A block of a stage: one layer, or two with the input or a shortcut's layer added to them.
at::Tensor block(const CnnShape& shape, const CnnBlockShape& block, const Pass& pass, Tensors p,
                 const at::Tensor& x) {
  const auto each = static_cast<size_t>(shape.layer_parameters());
  const auto layer = [&](const ConvShape& conv, size_t place, const at::Tensor& in) {
    return cnn_layer(shape, conv, shape.groups(conv.out), pass, p.subspan(place * each), in);
  };
  at::Tensor y = layer(block.layers[0], 0, x);
  if (!shape.residual) return activate(shape.activation, y);
  y = layer(block.layers[1], 1, activate(shape.activation, y));
  const at::Tensor shortcut = block.shortcut ? layer(*block.shortcut, 2, x) : x;
  return activate(shape.activation, y + shortcut);
}

TensorFunction of_one(std::function<at::Tensor(const Pass&, Tensors, const at::Tensor&)> function) {
  return [f = std::move(function)](const Pass& pass, Tensors p, Tensors x) {
    return std::vector<at::Tensor>{f(pass, p, x[0])};
  };
}

}  // namespace

at::Tensor cnn_layer(const CnnShape& shape, const ConvShape& conv, int64_t groups, const Pass& pass,
                     Tensors p, const at::Tensor& x) {
  const int64_t padding = conv.kernel / 2;
  const at::IntArrayRef stride(conv.stride);
  if (shape.norm == NormKind::kNone) return at::conv2d(x, p[0], p[1], stride, padding);

  // cuDNN is kept out of the norms, because it would choose the kernel, and with it the bits.
  const at::Tensor y = at::conv2d(x, p[0], {}, stride, padding);
  if (shape.norm == NormKind::kGroup)
    return at::group_norm(y, groups, p[1], p[2], kCnnNormEps, /*cudnn_enabled=*/false);
  return at::batch_norm(y, p[1], p[2], p[3], p[4], pass.training, kCnnMomentum, kCnnNormEps,
                        /*cudnn_enabled=*/false);
}

at::Tensor cnn_pooled(const CnnShape& shape, const at::Tensor& x) {
  const at::Tensor active = activate(shape.activation, x);
  return shape.pool == Pool::kMax ? max_pool(active) : average_pool(active);
}

at::Tensor cnn_classified(const CnnShape& shape, Pass pass, int block, Tensors p,
                          const at::Tensor& x) {
  // Features are the means over pixels. With keys the mask is drawn on the device.
  at::Tensor features = at::mean(x, {2, 3});
  pass.block = block;
  Dropout dropout = cnn_dropout(shape, pass);
  dropout.keys = pass.keys;
  if (dropout.rate > 0) features = features * keyed_mask(dropout, features);
  return at::linear(features, p[0], p[1]);
}

std::unique_ptr<Segment> cnn_segment(AdaptOptions options, std::string name, const Block& block,
                                     size_t first, size_t count, std::vector<Border> in,
                                     std::vector<Border> out, TensorFunction function) {
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = std::move(in);
  spec.outputs = std::move(out);
  spec.first_parameter = static_cast<int>(first);
  spec.parameters = static_cast<int>(count);
  for (size_t i = first; i < first + count; ++i) spec.roles.push_back(block.parameters[i].role);
  spec.options = std::move(options);
  spec.function = std::move(function);
  return std::make_unique<AutogradSegment>(std::move(spec));
}

void add_cnn_reference(const CnnPlan& plan, const Job& job, Model& model) {
  const CnnShape& shape = plan.shape;
  const double batch = static_cast<double>(shape.batch);

  // Adds a block's only segment.
  const auto add = [&](Block& to, const char* name, Border in, Border out, double flops,
                       auto function) {
    AdaptOptions options = built_in_options(job);
    options.flops = flops * batch;
    // Only one layer's backward may run in two parts; a residual block has two.
    options.splits = !shape.residual || &to == &model.blocks.front() || &to == &model.blocks.back();
    to.segments.push_back(cnn_segment(std::move(options), name, to, 0, to.parameters.size(),
                                      {std::move(in)}, {std::move(out)},
                                      of_one(std::move(function))));
  };

  // `x` is what flows from block to block.
  Border x{
      "x", {shape.batch, plan.stem.out, plan.stem.height / 2, plan.stem.width / 2}, at::kFloat};
  add(model.blocks[0], "stem", model.data[0], x, plan.stem.flops(),
      [plan](const Pass& pass, Tensors p, const at::Tensor& images) {
        return cnn_pooled(plan.shape, cnn_layer(plan.shape, plan.stem,
                                                plan.shape.groups(plan.stem.out), pass, p, images));
      });

  // A block is one segment, since a residual one's shortcut reaches over all of its layers.
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const CnnBlockShape& part = plan.blocks[i];
    const Border out{"x", {shape.batch, part.channels(), part.height(), part.width()}, at::kFloat};
    double flops = part.shortcut ? part.shortcut->flops() : 0;
    for (const ConvShape& conv : part.layers) flops += conv.flops();
    add(model.blocks[i + 1], "block", x, out, flops,
        [shape, part](const Pass& pass, Tensors p, const at::Tensor& in) {
          return block(shape, part, pass, p, in);
        });
    x = out;
  }
  add(model.blocks.back(), "head", x, {"logits", {shape.batch, shape.classes}, at::kFloat}, 0,
      [shape](const Pass& pass, Tensors p, const at::Tensor& in) {
        return cnn_classified(shape, pass, pass.block, p, in);
      });
}

}  // namespace tutti
