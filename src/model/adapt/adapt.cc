// Blocks of one autograd segment, made from functions; and what built-in models ask of such
// segments.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/error.h"
#include "config/job.h"
#include "model/adapt/adaptor.h"

namespace tutti {

at::ScalarType compute_type(const Job& job) {
  switch (job.numerics.precision) {
    case Precision::kBfloat16:
      return at::kBFloat16;
    case Precision::kFloat16:
      return at::kHalf;
    case Precision::kFloat32:
      break;
  }
  return at::kFloat;
}

AdaptOptions built_in_options(const Job& job) {
  // Built-in models take their randomness from Pass and do not wait for the device.
  AdaptOptions options;
  options.captures = true;
  options.precision = compute_type(job);
  return options;
}

Block one_segment_block(AutogradSegment::Spec spec, std::vector<Parameter> parameters) {
  // What is left of the chosen inits afterwards names no parameter.
  auto left = spec.options.init;
  for (Parameter& p : parameters)
    if (auto chosen = left.extract(p.name)) p.init = chosen.mapped();
  if (!left.empty())
    throw Error(
        fmt::format("block {} has no parameter {} to initialise", spec.name, left.begin()->first));

  // Roles stay empty for the common case that everything is trained.
  if (std::any_of(parameters.begin(), parameters.end(),
                  [](const auto& p) { return p.role != Role::kTrained; }))
    for (const Parameter& p : parameters) spec.roles.push_back(p.role);
  Block block;
  block.name = spec.name;
  block.parameters = std::move(parameters);
  block.segments.push_back(std::make_unique<AutogradSegment>(std::move(spec)));
  return block;
}

Block adapt(std::string name, std::vector<Parameter> parameters, TensorFunction function,
            std::vector<Border> in, std::vector<Border> out, AdaptOptions options) {
  if (!options.buffers.empty())
    throw Error(
        fmt::format("block {}: AdaptOptions::buffers are a module's; a function's have a role in "
                    "its Parameters",
                    name));
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = std::move(in);
  spec.outputs = std::move(out);
  spec.parameters = static_cast<int>(parameters.size());
  spec.function = std::move(function);
  spec.options = std::move(options);
  return one_segment_block(std::move(spec), std::move(parameters));
}

Init default_init(const std::string& name, const std::vector<int64_t>& dims) {
  if (dims.size() >= 2) return {Init::Kind::kHeUniform, 1};
  const bool weight = name == "weight" || name.ends_with(".weight");
  return {weight ? Init::Kind::kOnes : Init::Kind::kZeros, 1};
}

void start_backward_thread(at::Device device) {
  at::AutoGradMode mode(true);
  const at::Tensor x = at::ones({1}, at::TensorOptions().device(device)).requires_grad_();
  const at::Tensor y = x * x;
  torch::autograd::grad({y}, {x}, {at::ones_like(y)});
}

}  // namespace tutti
